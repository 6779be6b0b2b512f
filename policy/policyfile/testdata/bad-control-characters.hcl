version = 1
# [2J
rule "r" {
  when = "[31m"
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 4, column 10, in rule "r":
   4:   when = "?[31m"
               ^^^^^^^

  when is true or false, not a string
