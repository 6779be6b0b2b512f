version = 1
rule "r" {
  when = true
  grant {
    hold = "601s"
  }
}
=== wrong
Error: Unusable value "601s"

  on policy.hcl line 5, column 12, in rule "r":
   5:     hold = "601s"
                 ^^^^^^

  hold: want a time like 10s, up to 10m0s
