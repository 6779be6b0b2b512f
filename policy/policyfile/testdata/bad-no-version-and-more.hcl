trigger {
  version = 1
  option  = true
}
rule "r" {
  when = true
  grant { priority = low }
}
=== wrong
Error: Missing version

  on policy.hcl line 1, column 1:
   1: trigger {
      ^

  a file begins with version = 1, outside of every block

Error: Unsupported argument

  on policy.hcl line 2, column 3, in trigger:
   2:   version = 1
        ^^^^^^^

  An argument named "version" is not expected here.

Error: Unknown variable

  on policy.hcl line 7, column 22, in rule "r":
   7:   grant { priority = low }
                           ^^^

  There is no variable named "low". A text stands in quotes: write "low".
