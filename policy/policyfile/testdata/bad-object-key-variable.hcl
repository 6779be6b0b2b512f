version = 1
locals {
  o = { (job.user) = 1 }
}
rule "r" {
  when = local.o.a == 1
  grant {}
}
=== wrong
Error: Variables not allowed

  on policy.hcl line 3, column 9, in locals:
   3:   o = { (job.user) = 1 }
              ^^^^^^^^^^

  an attribute of an object has a constant name
