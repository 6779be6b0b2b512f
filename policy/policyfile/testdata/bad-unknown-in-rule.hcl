version = 1
rule "r" {
  when = true
  then = 1
  grant {}
}
=== wrong
Error: Unsupported argument

  on policy.hcl line 4, column 3, in rule "r":
   4:   then = 1
        ^^^^

  An argument named "then" is not expected here.
