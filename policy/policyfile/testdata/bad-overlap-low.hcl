version = 1
rule "r" {
  when = true
  grant {
    overlap = 0.5
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 15, in rule "r":
   5:     overlap = 0.5
                    ^^^

  overlap is 1 to 48, not 0.5
