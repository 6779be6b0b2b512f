version = 1
rule "r" {
  when = true
  grant {
    share = job.uid > 5 ? "even" : "odd"
  }
}
=== wrong
Error: Unusable value "odd"

  on policy.hcl line 5, column 36, in rule "r":
   5:     share = job.uid > 5 ? "even" : "odd"
                                         ^^^^^

  share: want none, even, overlap:F, PCT% or a list like 3:1
