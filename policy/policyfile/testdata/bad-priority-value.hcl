version = 1
rule "r" {
  when = true
  grant {
    priority = "high"
  }
}
=== wrong
Error: Unusable value "high"

  on policy.hcl line 5, column 16, in rule "r":
   5:     priority = "high"
                     ^^^^^^

  priority: want low or normal
