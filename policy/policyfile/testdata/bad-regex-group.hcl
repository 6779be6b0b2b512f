version = 1
rule "r" {
  when = can(regex("(a|b)c", job.account))
  grant {}
}
=== wrong
Error: Group in a pattern

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = can(regex("(a|b)c", job.account))
                         ^^^^^^^^

  regex is the part that matches as a whole: write (?:…) for a group
