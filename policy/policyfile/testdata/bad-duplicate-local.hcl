version = 1
locals {
  a = 1
}
locals {
  a = 2
}
=== wrong
Error: Duplicate local

  on policy.hcl line 6, column 3, in locals:
   6:   a = 2
        ^

  local.a stands at policy.hcl:3 already
