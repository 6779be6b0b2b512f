version = 1
locals {
  limit = {
    chem = 4
  }
}
rule "r" {
  when = local.limit.phys > 1
  grant {}
}
=== wrong
Error: Unsupported attribute

  on policy.hcl line 8, column 21, in rule "r":
   8:   when = local.limit.phys > 1
                          ^^^^^

  the object has no attribute named "phys".
