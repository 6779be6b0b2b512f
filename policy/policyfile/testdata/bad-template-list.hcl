version = 1
rule "r" {
  when = "${job.gpus}" == ""
  grant {}
}
=== wrong
Error: Never equal

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = "${job.gpus}" == ""
               ^^^^^^^^^^^^^^^^^^^

  this compares a list with a string
