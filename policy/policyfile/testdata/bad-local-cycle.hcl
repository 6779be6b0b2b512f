version = 1
locals {
  a = local.b
  b = local.c + 1
  c = local.a
}
=== wrong
Error: Cycle

  on policy.hcl line 5, column 12, in locals:
   5:   c = local.a
                 ^^

  local.a is made of itself
