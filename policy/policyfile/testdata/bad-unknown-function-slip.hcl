version = 1
rule "r" {
  when = contain(job.requested, "x")
  grant {}
}
=== wrong
Error: Call to unknown function

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = contain(job.requested, "x")
               ^^^^^^^

  There is no function named "contain". Did you mean "contains"?
