version = 1
rule "r" {
  when = "%{ for g in job.gpus }x%{ endfor }" == "x"
  grant {}
}
=== wrong
Error: Not in this language

  on policy.hcl line 3, column 11, in rule "r":
   3:   when = "%{ for g in job.gpus }x%{ endfor }" == "x"
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

  a policy has operators, function calls, "${…}", lists, objects, for and ?: alone
