version = 1
rule "r" {
  when = true
  grant {
    max_clients = 2.5
  }
}
=== wrong
Error: Not a whole number

  on policy.hcl line 5, column 19, in rule "r":
   5:     max_clients = 2.5
                        ^^^

  max_clients has no decimals, and this can be 2.5: write floor(…)
