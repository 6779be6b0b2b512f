version = 1
locals {
  first = job.gpus[0]
}
rule "r" {
  when = local.first == 0
  grant {}
}
=== wrong
Error: May fail

  on policy.hcl line 3, column 11, in locals:
   3:   first = job.gpus[0]
                ^^^^^^^^^^^

  the list may be shorter: say with try(…, DEFAULT) what else
