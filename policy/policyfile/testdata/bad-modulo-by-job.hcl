version = 1
rule "r" {
  when = 100 % job.ntasks > 10
  grant {}
}
=== wrong
Error: Division by zero

  on policy.hcl line 3, column 16, in rule "r":
   3:   when = 100 % job.ntasks > 10
                     ^^^^^^^^^^

  this can be 0: write max(1, …)
