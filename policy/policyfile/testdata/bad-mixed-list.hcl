version = 1
rule "r" {
  when = contains(["a", 1], job.user)
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 25, in rule "r":
   3:   when = contains(["a", 1], job.user)
                              ^

  a list has numbers, strings or bools of one kind: this is a number
