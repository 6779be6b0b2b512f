version = 1
trigger {
  option = "yes"
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 12, in trigger:
   3:   option = "yes"
                 ^^^^^

  option is true or false, not a string
