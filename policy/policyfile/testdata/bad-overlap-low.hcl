version = 1
rule "r" {
  when = true
  grant {
    overlap = 0.5
  }
}
=== wrong
Error: Unusable value 0.5

  on policy.hcl line 5, column 15, in rule "r":
   5:     overlap = 0.5
                    ^^^

  overlap: want a number from 1 to 48
