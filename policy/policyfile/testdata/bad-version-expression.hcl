version = job.id
=== wrong
Error: Variables not allowed

  on policy.hcl line 1, column 11:
   1: version = job.id
                ^^^^^^

  version is constant: it cannot depend on a job
