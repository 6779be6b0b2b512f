version = 1
trigger {}
=== wrong
Error: Nothing triggers

  on policy.hcl line 2, column 1, in trigger:
   2: trigger {}
      ^^^^^^^

  no job could ask for MPS: name a constraint, a comment or option = true
