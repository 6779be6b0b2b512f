version = 1
rule "r" {
  when = (job.uid > 5 ? "a" : 1) == 1
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 11, in rule "r":
   3:   when = (job.uid > 5 ? "a" : 1) == 1
                ^^^^^^^^^^^^^^^^^^^^^

  ?: chooses between two strings, numbers or bools, and these are a string and a number
