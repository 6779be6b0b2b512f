version = 1
rule "r" {
  when = true
  grant {
    memory = "8"
  }
}
=== wrong
Error: Unusable value "8"

  on policy.hcl line 5, column 14, in rule "r":
   5:     memory = "8"
                   ^^^

  memory: want none, even, or a size of whole MiB, like 8G or 16384M
