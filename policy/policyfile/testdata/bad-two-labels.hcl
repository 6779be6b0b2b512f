version = 1
rule "a" "b" {
}
=== wrong
Error: Extraneous label for rule

  on policy.hcl line 2, column 10, in rule "a" "b":
   2: rule "a" "b" {
               ^^^

  Only 1 labels (name) are expected for rule blocks.
