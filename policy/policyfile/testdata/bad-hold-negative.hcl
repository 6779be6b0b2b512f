version = 1
rule "r" {
  when = true
  grant {
    hold = "-1s"
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 12, in rule "r":
   5:     hold = "-1s"
                 ^^^^^

  hold is 0s to 10m0s, not -1s
