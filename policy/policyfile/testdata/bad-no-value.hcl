version = 1
rule "r" {
  when = try([][0], [][0]) == 1
  grant {}
}
=== wrong
Error: Error in function call

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = try([][0], [][0]) == 1
               ^^^^

  Call to function "try" failed: no expression succeeded: - Invalid index (at policy.hcl:3,16-19) The given key does not identify an element in this collection value: the collection has no elements. - Invalid index (at policy.hcl:3,23-26) The given key does not identify an element in this collection value: the collection has no elements. At least one expression must produce a successful result.
