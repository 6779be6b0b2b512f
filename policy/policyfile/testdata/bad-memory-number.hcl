version = 1
rule "r" {
  when = true
  grant {
    memory = 8
  }
}
=== wrong
Error: Wrong type

  on policy.hcl line 5, column 14, in rule "r":
   5:     memory = 8
                   ^

  memory is a string, not a number
