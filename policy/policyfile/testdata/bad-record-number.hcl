version = 1
record = 1
rule "r" {
  when = true
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 2, column 10:
   2: record = 1
               ^

  record is a string, not a number
