version = 1
rule "r" {
  when = true
  deny = ""
}
=== wrong
Error: No reason

  on policy.hcl line 4, column 10, in rule "r":
   4:   deny = ""
               ^^

  deny is the reason, which the job is told
