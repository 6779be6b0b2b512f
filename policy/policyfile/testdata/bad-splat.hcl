version = 1
rule "r" {
  when = length(job.gpus[*]) == 1
  grant {}
}
=== wrong
Error: Not in this language

  on policy.hcl line 3, column 17, in rule "r":
   3:   when = length(job.gpus[*]) == 1
                      ^^^^^^^^^^^

  a policy has operators, function calls, "${…}", lists, objects, for and ?: alone
