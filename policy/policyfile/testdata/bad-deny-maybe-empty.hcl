version = 1
rule "r" {
  when = true
  deny = job.uid == 0 ? "" : "no"
}
=== wrong
Error: No reason

  on policy.hcl line 4, column 25, in rule "r":
   4:   deny = job.uid == 0 ? "" : "no"
                              ^^

  deny is the reason, which the job is told
