version = 1
rule "r" {
  when = job.uid == "1001"
  grant {}
}
=== wrong
Error: Never equal

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job.uid == "1001"
               ^^^^^^^^^^^^^^^^^

  this compares a number with a string
