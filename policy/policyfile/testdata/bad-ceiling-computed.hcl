version = 1
rule "r" {
  when = true
  grant {
    ceiling = 200 / max(1, length(job.gpus))
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 15, in rule "r":
   5:     ceiling = 200 / max(1, length(job.gpus))
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

  ceiling is 1 to 100, and this can be anything from 0 to 200: hold it with min(100, max(1, …))
