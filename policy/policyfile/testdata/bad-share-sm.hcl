version = 1
rule "r" {
  when = true
  grant {
    share = "20sm"
  }
}
=== wrong
Error: Unknown value "20sm"

  on policy.hcl line 5, column 13, in rule "r":
   5:     share = "20sm"
                  ^^^^^^

  share: want none, even, overlap:F or PCT%; one rank's own share is set by mpirun-wrap --share
