version = 1
rule "r" {
  when = !job.user
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 11, in rule "r":
   3:   when = !job.user
                ^^^^^^^^

  ! takes true or false, and this is a string
