version = 1
rule "r" {
  when = length({for g in job.gpus : g => 1}) == 1
  grant {}
}
=== wrong
Error: Not in this language

  on policy.hcl line 3, column 17, in rule "r":
   3:   when = length({for g in job.gpus : g => 1}) == 1
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^

  for makes lists: [for x in LIST : VALUE if CONDITION]
