version = 1
rule "r" {
  when = true
  grant {}
  grant {}
}
=== wrong
Error: Duplicate grant

  on policy.hcl line 5, column 3, in rule "r":
   5:   grant {}
        ^^^^^

  rule "r" has a grant already
