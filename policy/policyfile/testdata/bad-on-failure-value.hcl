version = 1
rule "r" {
  when = true
  grant {
    on_failure = "retry"
  }
}
=== wrong
Error: Unusable value "retry"

  on policy.hcl line 5, column 18, in rule "r":
   5:     on_failure = "retry"
                       ^^^^^^^

  on_failure: want drain or run_without
