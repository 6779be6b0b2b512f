version = 1
rule "r" {
  when = min() == 1
  grant {}
}
=== wrong
Error: Wrong number of arguments

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = min() == 1
               ^^^^^

  min takes 1 or more, not 0
