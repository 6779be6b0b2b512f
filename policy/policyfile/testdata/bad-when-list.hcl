version = 1
rule "r" {
  when = job.gpus
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job.gpus
               ^^^^^^^^

  when is true or false, not a list
