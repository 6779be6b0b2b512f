version = 1
rule "r" {
  when = true
  grant {
    hold = "10"
  }
}
=== wrong
Error: Unusable value "10"

  on policy.hcl line 5, column 12, in rule "r":
   5:     hold = "10"
                 ^^^^

  hold: want a time like 10s, up to 10m0s
