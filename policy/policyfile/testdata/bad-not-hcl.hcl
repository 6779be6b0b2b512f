{"version": 1}
=== wrong
Error: Argument or block definition required

  on policy.hcl line 1, column 1:
   1: {"version": 1}
      ^

  An argument or block definition is required here.
