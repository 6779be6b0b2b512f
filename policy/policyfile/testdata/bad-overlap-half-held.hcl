version = 1
rule "r" {
  when = true
  grant {
    overlap = min(job.ntasks, 48)
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 15, in rule "r":
   5:     overlap = min(job.ntasks, 48)
                    ^^^^^^^^^^^^^^^^^^^

  overlap is 1 to 48, and this can be anything from 0 to 48: hold it with min(48, max(1, …))
