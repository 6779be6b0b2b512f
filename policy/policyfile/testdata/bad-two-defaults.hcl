version = 1
defaults {}
defaults {}
=== wrong
Error: Duplicate defaults

  on policy.hcl line 3, column 1, in defaults:
   3: defaults {}
      ^^^^^^^^

  a policy has one defaults block, in whichever file: it stands at policy.hcl:2 already
