version = "1"
=== wrong
Error: Wrong type

  on policy.hcl line 1, column 11:
   1: version = "1"
                ^^^

  version is a number, not a string
