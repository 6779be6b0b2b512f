version = 1
rule "r" {
  when = regex("^chem", job.account) == "chem"
  grant {}
}
=== wrong
Error: May fail

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = regex("^chem", job.account) == "chem"
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^

  the pattern may match no part of the string: ask can(regex(…)), or say with try(regex(…), "") what else
