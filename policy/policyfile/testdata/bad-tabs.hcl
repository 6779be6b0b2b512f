version = 1
rule "r" {
	when = user
	grant {}
}
=== wrong
Error: Unknown variable

  on policy.hcl line 3, column 9, in rule "r":
   3:     when = user
                 ^^^^

  There is no variable named "user". Did you mean job.user?
