version = 1
rule "r" {
  when = contains(job.gpus, job.gpus)
  grant {}
}
=== wrong
Error: Never true

  on policy.hcl line 3, column 29, in rule "r":
   3:   when = contains(job.gpus, job.gpus)
                                  ^^^^^^^^

  the list is of numbers, and this is a list
