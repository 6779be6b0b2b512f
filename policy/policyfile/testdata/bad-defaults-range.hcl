version = 1
defaults {
  overlap = 0
}
=== wrong
Error: Out of range

  on policy.hcl line 3, column 13, in defaults:
   3:   overlap = 0
                  ^

  overlap is 1 to 48, not 0
