version = 1
rule "r" {
  when = contains(job.requested)
  grant {}
}
=== wrong
Error: Wrong number of arguments

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = contains(job.requested)
               ^^^^^^^^^^^^^^^^^^^^^^^

  contains takes 2, not 1
