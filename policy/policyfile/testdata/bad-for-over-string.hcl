version = 1
rule "r" {
  when = length([for c in job.user : c]) == 1
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 27, in rule "r":
   3:   when = length([for c in job.user : c]) == 1
                                ^^^^^^^^

  for takes a list, and this is a string
