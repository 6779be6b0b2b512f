version = 1
rule "r" {
  when = true
  grant {
    hold = "10"
  }
}
=== wrong
Error: Not a duration

  on policy.hcl line 5, column 12, in rule "r":
   5:     hold = "10"
                 ^^^^

  hold is written like "10s" or "1m30s", not "10"
