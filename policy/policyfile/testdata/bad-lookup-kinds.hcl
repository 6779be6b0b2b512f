version = 1
rule "r" {
  when = lookup({a = 1}, job.user, "none") == 1
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 36, in rule "r":
   3:   when = lookup({a = 1}, job.user, "none") == 1
                                         ^^^^^^

  lookup takes attributes and a default of one kind: the object has numbers, and this is a string
