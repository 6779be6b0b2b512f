version = 1
rule "r" {
  when = job.gpu == 1
  grant {}
}
=== wrong
Error: Unsupported attribute

  on policy.hcl line 3, column 13, in rule "r":
   3:   when = job.gpu == 1
                  ^^^^

  job has no attribute named "gpu". Did you mean "gpus"?
