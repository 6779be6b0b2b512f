version = 1
rule "r" {
  when = length(job.gpus) > 0 && job.gpus[0] == 3
  grant {}
}
=== wrong
Error: May fail

  on policy.hcl line 3, column 34, in rule "r":
   3:   when = length(job.gpus) > 0 && job.gpus[0] == 3
                                       ^^^^^^^^^^^

  the list may be shorter: say with try(…, DEFAULT) what else
