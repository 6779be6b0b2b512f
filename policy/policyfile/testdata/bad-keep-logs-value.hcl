version = 1
rule "r" {
  when = true
  grant {
    keep_logs = true
  }
}
=== wrong
Error: Wrong type

  on policy.hcl line 5, column 17, in rule "r":
   5:     keep_logs = true
                      ^^^^

  keep_logs is a string, not true or false
