version = 1
trigger {
  option = true
}
trigger {
  option = true
}
=== wrong
Error: Duplicate trigger

  on policy.hcl line 5, column 1, in trigger:
   5: trigger {
      ^^^^^^^

  a policy has one trigger block, in whichever file: it stands at policy.hcl:2 already
