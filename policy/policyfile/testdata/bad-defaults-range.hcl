version = 1
defaults {
  overlap = 0
}
=== wrong
Error: Unusable value 0

  on policy.hcl line 3, column 13, in defaults:
   3:   overlap = 0
                  ^

  overlap: want a number from 1 to 48
