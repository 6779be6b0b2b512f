version = 1
rule "r" {
  when = true
  grant {}
}
rule "r" {
  when = false
  grant {}
}
=== wrong
Error: Duplicate rule

  on policy.hcl line 6, column 6, in rule "r":
   6: rule "r" {
           ^^^

  a rule named "r" stands at policy.hcl:2 already; give this one another name
