version = 1
rule "r" {
  when = job.gpus[0] == 3
  grant {}
}
=== wrong
Error: May fail

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job.gpus[0] == 3
               ^^^^^^^^^^^

  the list may be shorter: say with try(…, DEFAULT) what else
