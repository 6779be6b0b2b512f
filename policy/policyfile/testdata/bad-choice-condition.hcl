version = 1
rule "r" {
  when = (job.uid ? 1 : 2) == 1
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 11, in rule "r":
   3:   when = (job.uid ? 1 : 2) == 1
                ^^^^^^^

  ?: takes true or false, and this is a number
