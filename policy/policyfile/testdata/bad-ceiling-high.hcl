version = 1
rule "r" {
  when = true
  grant {
    ceiling = 101
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 15, in rule "r":
   5:     ceiling = 101
                    ^^^

  ceiling is 1 to 100, not 101
