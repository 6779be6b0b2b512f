version = 1
rule "r" {
  when = jobs.user == "x"
  grant {}
}
=== wrong
Error: Unknown variable

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = jobs.user == "x"
               ^^^^

  There is no variable named "jobs". Did you mean "job"?
