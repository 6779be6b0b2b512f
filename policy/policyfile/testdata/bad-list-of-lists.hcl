version = 1
rule "r" {
  when = contains([["a"]], job.user)
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = contains([["a"]], job.user)
                         ^^^^^

  a list has numbers, strings or bools of one kind: this is a list
