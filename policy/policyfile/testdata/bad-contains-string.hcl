version = 1
rule "r" {
  when = contains(job.comment, "mps")
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 19, in rule "r":
   3:   when = contains(job.comment, "mps")
                        ^^^^^^^^^^^

  contains takes a list, and this is a string
