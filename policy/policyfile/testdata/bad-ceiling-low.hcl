version = 1
rule "r" {
  when = true
  grant {
    ceiling = 0.5
  }
}
=== wrong
Error: Unusable value 0.5

  on policy.hcl line 5, column 15, in rule "r":
   5:     ceiling = 0.5
                    ^^^

  ceiling: want a number from 1 to 100
