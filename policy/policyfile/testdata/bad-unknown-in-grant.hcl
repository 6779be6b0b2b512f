version = 1
rule "r" {
  when = true
  grant {
    scoop = "job"
  }
}
=== wrong
Error: Unsupported argument

  on policy.hcl line 5, column 5, in rule "r":
   5:     scoop = "job"
          ^^^^^

  An argument named "scoop" is not expected here. Did you mean "scope"?
