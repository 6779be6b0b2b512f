version = 1
rule "r" {
  when = length([for g in job.gpus : [for h in job.gpus : h]]) == 1
  grant {}
}
=== wrong
Error: Not in this language

  on policy.hcl line 3, column 38, in rule "r":
   3:   when = length([for g in job.gpus : [for h in job.gpus : h]]) == 1
                                           ^^^^^^^^^^^^^^^^^^^^^^^

  nested for expressions are not supported
