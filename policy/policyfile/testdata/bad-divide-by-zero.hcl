version = 1
rule "r" {
  when = 1 / 0 == 1
  grant {}
}
=== wrong
Error: Division by zero

  on policy.hcl line 3, column 14, in rule "r":
   3:   when = 1 / 0 == 1
                   ^

  this can be 0: write max(1, …)
