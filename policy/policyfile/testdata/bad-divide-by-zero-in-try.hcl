version = 1
rule "r" {
  when = try(1 / (3 - 3), 0) == 1
  grant {}
}
=== wrong
Error: Division by zero

  on policy.hcl line 3, column 18, in rule "r":
   3:   when = try(1 / (3 - 3), 0) == 1
                       ^^^^^^^

  this can be 0: write max(1, …)
