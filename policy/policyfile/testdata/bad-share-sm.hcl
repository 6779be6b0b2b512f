version = 1
rule "r" {
  when = true
  grant {
    share = "20sm"
  }
}
=== wrong
Error: Unusable value "20sm"

  on policy.hcl line 5, column 13, in rule "r":
   5:     share = "20sm"
                  ^^^^^^

  share: want none, even, overlap:F, PCT% or a list like 3:1; a number of SMs is set by mpirun-wrap --share
