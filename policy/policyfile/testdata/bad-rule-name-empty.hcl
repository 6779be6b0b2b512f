version = 1
rule "" {
  when = true
  grant {}
}
=== wrong
Error: Unusable name

  on policy.hcl line 2, column 6, in rule "":
   2: rule "" {
           ^^

  the name of a rule is empty: it goes into tickets and logs
