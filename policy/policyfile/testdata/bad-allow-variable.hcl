version = 1
rule "r" {
  when  = true
  allow = [job.option]
  grant {}
}
=== wrong
Error: Variables not allowed

  on policy.hcl line 4, column 11, in rule "r":
   4:   allow = [job.option]
                ^^^^^^^^^^^^

  allow is constant: it cannot depend on a job
