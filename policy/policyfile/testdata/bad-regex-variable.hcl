version = 1
rule "r" {
  when = can(regex(job.comment, job.account))
  grant {}
}
=== wrong
Error: Variables not allowed

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = can(regex(job.comment, job.account))
                         ^^^^^^^^^^^

  the pattern of regex is constant, so that it is known to be one
