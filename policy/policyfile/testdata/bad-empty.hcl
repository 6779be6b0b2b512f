=== wrong
Error: Missing required argument

  on policy.hcl line 1, column 1:
   1: 
      ^

  The argument "version" is required, but no definition was found.
