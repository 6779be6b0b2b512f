version = 1
rule "r" {
  when = contains(job.uid > 5 ? ["a"] : ["b", "c"], job.user)
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 19, in rule "r":
   3:   when = contains(job.uid > 5 ? ["a"] : ["b", "c"], job.user)
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

  ?: chooses between two strings, numbers or bools, and these are a list and a list
