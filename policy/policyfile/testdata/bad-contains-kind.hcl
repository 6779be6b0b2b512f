version = 1
rule "r" {
  when = contains(job.gpus, "0")
  grant {}
}
=== wrong
Error: Never true

  on policy.hcl line 3, column 29, in rule "r":
   3:   when = contains(job.gpus, "0")
                                  ^^^

  the list is of numbers, and this is a string
