version = 1
rule "r" {
  when  = true
  allow = ["share", "on_failure"]
  grant {}
}
=== wrong
Error: Unknown option

  on policy.hcl line 4, column 11, in rule "r":
   4:   allow = ["share", "on_failure"]
                ^^^^^^^^^^^^^^^^^^^^^^^

  a user can set OPTIONS, not "on_failure"
