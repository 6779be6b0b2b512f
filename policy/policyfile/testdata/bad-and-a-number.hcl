version = 1
rule "r" {
  when = job.uid && true
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job.uid && true
               ^^^^^^^

  && takes true or false, and this is a number
