version = 1
rule "r" {
  when = true
  grant {
    compute_mode = 3
  }
}
=== wrong
Error: Wrong type

  on policy.hcl line 5, column 20, in rule "r":
   5:     compute_mode = 3
                         ^

  compute_mode is a string, not a number
