version = 1
rule "r" {
  when = ["a", "b"][5] == job.user
  grant {}
}
=== wrong
Error: Invalid index

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = ["a", "b"][5] == job.user
                         ^^^

  The given key does not identify an element in this collection value.
