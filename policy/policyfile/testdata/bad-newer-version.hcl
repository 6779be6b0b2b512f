version = 2
quota {}
=== wrong
Error: Unsupported version

  on policy.hcl line 1, column 11:
   1: version = 2
                ^

  this program reads policies of version 1, not 2
