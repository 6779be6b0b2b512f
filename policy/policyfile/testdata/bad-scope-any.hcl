version = 1
rule "r" {
  when = true
  grant {
    scope = job.comment
  }
}
=== wrong
Error: Unknown value

  on policy.hcl line 5, column 13, in rule "r":
   5:     scope = job.comment
                  ^^^^^^^^^^^

  scope is one of ["job" "gpu"], and this can be any string: choose with ?: between them
