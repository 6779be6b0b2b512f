version = 1
rule "r" {
  when = can(job.user)
  grant {}
}
=== wrong
Error: Always true

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = can(job.user)
               ^^^^^^^^^^^^^

  what can asks about cannot fail
