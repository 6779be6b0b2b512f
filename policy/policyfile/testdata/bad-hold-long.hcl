version = 1
rule "r" {
  when = true
  grant {
    hold = "601s"
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 12, in rule "r":
   5:     hold = "601s"
                 ^^^^^^

  hold is 0s to 10m0s, not 10m1s
