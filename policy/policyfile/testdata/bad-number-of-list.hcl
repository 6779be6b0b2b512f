version = 1
rule "r" {
  when = true
  grant { ceiling = job.gpus * 10 }
}
=== wrong
Error: Wrong type

  on policy.hcl line 4, column 21, in rule "r":
   4:   grant { ceiling = job.gpus * 10 }
                          ^^^^^^^^

  * takes a number, and this is a list: length(…) counts a list
