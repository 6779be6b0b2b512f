version = 1
rule "r" {
  when = try(job.gpus[0], job.gpus[1]) == 1
  grant {}
}
=== wrong
Error: May fail

  on policy.hcl line 3, column 27, in rule "r":
   3:   when = try(job.gpus[0], job.gpus[1]) == 1
                                ^^^^^^^^^^^

  the list may be shorter: say with try(…, DEFAULT) what else
