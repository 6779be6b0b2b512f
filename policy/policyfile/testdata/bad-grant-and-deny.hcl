version = 1
rule "r" {
  when = true
  deny = "no"
  grant {}
}
=== wrong
Error: Grant and deny

  on policy.hcl line 4, column 3, in rule "r":
   4:   deny = "no"
        ^^^^

  rule "r" grants and denies: do one of them
