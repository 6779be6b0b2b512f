version = 1
rules = 3
=== wrong
Error: Unsupported argument

  on policy.hcl line 2, column 1:
   2: rules = 3
      ^^^^^

  An argument named "rules" is not expected here.
