version = 1
rule "r" {
  when = true
  grant {
    overlap = job.ntasks
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 15, in rule "r":
   5:     overlap = job.ntasks
                    ^^^^^^^^^^

  overlap is 1 to 48, and this can be anything from 0 to 4294967295: hold it with min(48, max(1, …))
