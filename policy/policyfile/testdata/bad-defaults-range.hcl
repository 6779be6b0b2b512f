version = 1
defaults {
  ceiling = 0
}
=== wrong
Error: Unusable value 0

  on policy.hcl line 3, column 13, in defaults:
   3:   ceiling = 0
                  ^

  ceiling: want a number from 1 to 100
