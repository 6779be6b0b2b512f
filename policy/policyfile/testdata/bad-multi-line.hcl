version = 1
rule "r" {
  when = (job.uid ==
    "x")
  grant {}
}
=== wrong
Error: Never equal

  on policy.hcl line 3, column 11, in rule "r":
   3:   when = (job.uid ==
                ^^^^^^^^^^

  this compares a number with a string
