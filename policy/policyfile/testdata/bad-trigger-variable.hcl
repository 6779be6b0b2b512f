version = 1
trigger {
  constraint = job.user
}
=== wrong
Error: Variables not allowed

  on policy.hcl line 3, column 16, in trigger:
   3:   constraint = job.user
                     ^^^^^^^^

  constraint is constant: it cannot depend on a job
