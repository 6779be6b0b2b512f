version = 1
record = "al"
rule "r" {
  when = true
  grant {}
}
=== wrong
Error: Unusable value

  on policy.hcl line 2, column 10:
   2: record = "al"
               ^^^^

  record: want mps or all. Did you mean "all"?
