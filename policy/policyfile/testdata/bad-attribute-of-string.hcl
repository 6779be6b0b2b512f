version = 1
rule "r" {
  when = job.user.name == "x"
  grant {}
}
=== wrong
Error: Unsupported attribute

  on policy.hcl line 3, column 18, in rule "r":
   3:   when = job.user.name == "x"
                       ^^^^^

  this is a string and has none
