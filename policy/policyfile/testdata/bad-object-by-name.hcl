version = 1
locals {
  limit = {
    chem = 4
  }
}
rule "r" {
  when = local.limit[job.account] > 1
  grant {}
}
=== wrong
Error: May fail

  on policy.hcl line 8, column 10, in rule "r":
   8:   when = local.limit[job.account] > 1
               ^^^^^^^^^^^^^^^^^^^^^^^^

  the object may have no such attribute: say with try(…, DEFAULT) or lookup(OBJECT, NAME, DEFAULT) what else
