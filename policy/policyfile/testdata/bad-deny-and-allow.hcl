version = 1
rule "r" {
  when  = true
  deny  = "no"
  allow = ["share"]
}
=== wrong
Error: Nothing to allow

  on policy.hcl line 5, column 3, in rule "r":
   5:   allow = ["share"]
        ^^^^^

  rule "r" grants nothing that a user's options could narrow
