version = 1
rule "r" {
  when = true
  grant {
    hold = 10
  }
}
=== wrong
Error: Wrong type

  on policy.hcl line 5, column 12, in rule "r":
   5:     hold = 10
                 ^^

  hold is a string, not a number
