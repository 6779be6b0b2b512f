version = 1
record = job.user
rule "r" {
  when = true
  grant {}
}
=== wrong
Error: Variables not allowed

  on policy.hcl line 2, column 10:
   2: record = job.user
               ^^^^^^^^

  record is constant: it cannot depend on a job
