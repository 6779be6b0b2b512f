version = 1
rule "r" {
  when = true
  grant {
    drain_grace = "1h"
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 19, in rule "r":
   5:     drain_grace = "1h"
                        ^^^^

  drain_grace is 0s to 10m0s, not 1h0m0s
