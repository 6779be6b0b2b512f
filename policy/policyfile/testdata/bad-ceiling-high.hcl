version = 1
rule "r" {
  when = true
  grant {
    ceiling = 101
  }
}
=== wrong
Error: Unusable value 101

  on policy.hcl line 5, column 15, in rule "r":
   5:     ceiling = 101
                    ^^^

  ceiling: want a number from 1 to 100
