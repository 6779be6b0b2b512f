version = 1
rule "r" {
  when = length(job.uid) > 1
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 17, in rule "r":
   3:   when = length(job.uid) > 1
                      ^^^^^^^

  length counts a list or a string, not a number
