version = 1
rule "r" {
  when = min(job.gpus...) == 1
  grant {}
}
=== wrong
Error: Not in this language

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = min(job.gpus...) == 1
               ^^^^^^^^^^^^^^^^

  the arguments of a function are written out, not expanded by ...
