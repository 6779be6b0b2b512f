version = 1
rule "r" {
  when  = true
  allow = "share"
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 4, column 11, in rule "r":
   4:   allow = "share"
                ^^^^^^^

  allow is a list, not a string
