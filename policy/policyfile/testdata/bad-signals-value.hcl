version = 1
rule "r" {
  when = true
  grant {
    signals = "off"
  }
}
=== wrong
Error: Unknown value "off"

  on policy.hcl line 5, column 15, in rule "r":
   5:     signals = "off"
                    ^^^^^

  signals is one of ["protect" "pass"]
