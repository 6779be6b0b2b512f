version = 1
rule "r" {
  when = job.user > "m"
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job.user > "m"
               ^^^^^^^^

  > takes a number, and this is a string

Error: Wrong type

  on policy.hcl line 3, column 21, in rule "r":
   3:   when = job.user > "m"
                          ^^^

  > takes a number, and this is a string
