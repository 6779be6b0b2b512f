version = 1
rule "r" {
  when = true
  grant {
    max_clients = 2.5
  }
}
=== wrong
Error: Unusable value 2.5

  on policy.hcl line 5, column 19, in rule "r":
   5:     max_clients = 2.5
                        ^^^

  max_clients: want a whole number from 1 to 60
