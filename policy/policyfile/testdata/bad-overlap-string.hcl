version = 1
rule "r" {
  when = true
  grant {
    overlap = "2"
  }
}
=== wrong
Error: Wrong type

  on policy.hcl line 5, column 15, in rule "r":
   5:     overlap = "2"
                    ^^^

  overlap is a number, not a string
