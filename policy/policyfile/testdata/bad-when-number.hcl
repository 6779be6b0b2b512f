version = 1
rule "r" {
  when = job.uid
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job.uid
               ^^^^^^^

  when is true or false, not a number
