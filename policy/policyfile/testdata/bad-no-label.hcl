version = 1
rule {
}
=== wrong
Error: Missing name for rule

  on policy.hcl line 2, column 6, in rule:
   2: rule {
           ^

  All rule blocks must have 1 labels (name).
