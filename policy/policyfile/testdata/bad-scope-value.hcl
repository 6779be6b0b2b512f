version = 1
rule "r" {
  when = true
  grant {
    scope = "node"
  }
}
=== wrong
Error: Unusable value "node"

  on policy.hcl line 5, column 13, in rule "r":
   5:     scope = "node"
                  ^^^^^^

  scope: want job or gpu. Did you mean "none"?
