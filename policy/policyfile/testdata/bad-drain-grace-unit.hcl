version = 1
rule "r" {
  when = true
  grant {
    drain_grace = "10"
  }
}
=== wrong
Error: Unusable value "10"

  on policy.hcl line 5, column 19, in rule "r":
   5:     drain_grace = "10"
                        ^^^^

  drain_grace: want a time like 10s, up to 10m0s
