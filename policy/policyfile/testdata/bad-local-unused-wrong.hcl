version = 1
locals {
  a = 1 + "x"
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 11, in locals:
   3:   a = 1 + "x"
                ^^^

  + takes a number, and this is a string
