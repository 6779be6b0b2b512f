=== wrong
Error: Missing version

  on policy.hcl line 1, column 1:
   1: 
      ^

  a file begins with version = 1, outside of every block
