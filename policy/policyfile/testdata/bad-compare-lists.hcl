version = 1
rule "r" {
  when = job.gpus == [0, 1]
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job.gpus == [0, 1]
               ^^^^^^^^^^^^^^^^^^

  == and != compare numbers, strings and bools: see contains and length for lists
