version = 1
rule "r" {
  when = user == "x"
  grant {}
}
=== wrong
Error: Unknown variable

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = user == "x"
               ^^^^

  There is no variable named "user". Did you mean job.user?
