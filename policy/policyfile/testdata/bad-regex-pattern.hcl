version = 1
rule "r" {
  when = can(regex("(", job.account))
  grant {}
}
=== wrong
Error: Not a pattern

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = can(regex("(", job.account))
                         ^^^

  error parsing regexp: missing closing ): `(`
