version = 1
rule "r" {
  when = true
  deny = job.uid
}
=== wrong
Error: Wrong type

  on policy.hcl line 4, column 10, in rule "r":
   4:   deny = job.uid
               ^^^^^^^

  deny is the reason, a string, not a number
