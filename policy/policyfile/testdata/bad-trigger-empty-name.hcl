version = 1
trigger {
  constraint = ""
}
=== wrong
Error: Unusable value

  on policy.hcl line 3, column 16, in trigger:
   3:   constraint = ""
                     ^^

  constraint is empty
