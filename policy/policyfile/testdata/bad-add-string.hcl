version = 1
rule "r" {
  when = job.uid + "1" > 2
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = job.uid + "1" > 2
                         ^^^

  + takes a number, and this is a string
