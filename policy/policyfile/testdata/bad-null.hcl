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

  null is not supported: unset values are "", 0 or []
