version = 1
rule "r" {
  when = lower(job.user, "x") == ""
  grant {}
}
=== wrong
Error: Wrong number of arguments

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = lower(job.user, "x") == ""
               ^^^^^^^^^^^^^^^^^^^^

  lower takes 1, not 2
