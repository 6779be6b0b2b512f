version = 1
locals {
  a {}
}
=== wrong
Error: Unexpected "a" block

  on policy.hcl line 3, column 3, in locals:
   3:   a {}
        ^

  Blocks are not allowed here.
