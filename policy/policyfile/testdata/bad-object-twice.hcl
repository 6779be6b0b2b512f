version = 1
locals {
  o = { a = 1, a = 2 }
}
rule "r" {
  when = local.o.a == 1
  grant {}
}
=== wrong
Error: Set twice

  on policy.hcl line 3, column 16, in locals:
   3:   o = { a = 1, a = 2 }
                     ^

  the object has an attribute "a" already
