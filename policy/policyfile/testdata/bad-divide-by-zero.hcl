version = 1
rule "r" {
  when = 1 / 0 == 1
  grant {}
}
=== wrong
Error: Operation failed

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = 1 / 0 == 1
               ^^^^^

  Error during operation: the divisor is 0: write max(1, …).
