version = 1
rule "r" {
  when = startswith(job.uid, "1")
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 21, in rule "r":
   3:   when = startswith(job.uid, "1")
                          ^^^^^^^

  startswith takes a string, and this is a number
