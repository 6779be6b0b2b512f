version = 1
quota "x" {}
=== wrong
Error: Unsupported block type

  on policy.hcl line 2, column 1, in quota "x":
   2: quota "x" {}
      ^^^^^

  Blocks of type "quota" are not expected here. A policy has trigger, locals, defaults and rule.
