version = 1
rule "r" {
  when = true
  grant {
    drain_grace = "-1s"
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 19, in rule "r":
   5:     drain_grace = "-1s"
                        ^^^^^

  drain_grace is 0s to 10m0s, not -1s
