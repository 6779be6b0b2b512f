version = 1
rule "r" {
  when = true
  grant {
    max_clients = min(48, max(1, job.ntasks / 2))
  }
}
=== wrong
Error: Not a whole number

  on policy.hcl line 5, column 19, in rule "r":
   5:     max_clients = min(48, max(1, job.ntasks / 2))
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

  max_clients has no decimals, and this can be anything from 1 to 48: write floor(…)
