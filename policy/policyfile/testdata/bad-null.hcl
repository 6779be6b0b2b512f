version = 1
rule "r" {
  when = job.reservation == null
  grant {}
}
=== wrong
Error: No null

  on policy.hcl line 3, column 29, in rule "r":
   3:   when = job.reservation == null
                                  ^^^^

  nothing is null here: what Slurm does not say is "", 0 or []
