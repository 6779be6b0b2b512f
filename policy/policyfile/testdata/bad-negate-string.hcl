version = 1
rule "r" {
  when = -job.user == 1
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 11, in rule "r":
   3:   when = -job.user == 1
                ^^^^^^^^

  - takes a number, and this is a string
