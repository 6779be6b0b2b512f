version = 1
rule "r" {
  when = true
  grant {
    limits {}
  }
}
=== wrong
Error: Unsupported block type

  on policy.hcl line 5, column 5, in rule "r":
   5:     limits {}
          ^^^^^^

  Blocks of type "limits" are not expected here.
