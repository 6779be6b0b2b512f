version = 1
rule "r" {
  when = true
  grant {
    scope = "job"
    scope = "gpu"
  }
}
=== wrong
Error: Attribute redefined

  on policy.hcl line 6, column 5, in rule "r":
   6:     scope = "gpu"
          ^^^^^

  The argument "scope" was already set at policy.hcl:5,5-10. Each argument may be set only once.
