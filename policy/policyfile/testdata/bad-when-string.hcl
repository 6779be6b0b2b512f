version = 1
rule "r" {
  when = "true"
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = "true"
               ^^^^^^

  when is true or false, not a string
