version = 1
rule "r" {
  when = hasprefix(job.user, "x")
  grant {}
}
=== wrong
Error: Call to unknown function

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = hasprefix(job.user, "x")
               ^^^^^^^^^

  There is no function named "hasprefix".
