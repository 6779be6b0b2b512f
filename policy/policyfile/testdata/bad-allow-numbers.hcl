version = 1
rule "r" {
  when  = true
  allow = [1]
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 4, column 11, in rule "r":
   4:   allow = [1]
                ^^^

  allow is a list of strings, not of numbers
