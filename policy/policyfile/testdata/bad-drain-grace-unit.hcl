version = 1
rule "r" {
  when = true
  grant {
    drain_grace = "10"
  }
}
=== wrong
Error: Not a duration

  on policy.hcl line 5, column 19, in rule "r":
   5:     drain_grace = "10"
                        ^^^^

  drain_grace is written like "10s" or "1m30s", not "10"
