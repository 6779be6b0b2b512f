version = 1
rule "a\nb" {
  when = true
  grant {}
}
=== wrong
Error: Unusable name

  on policy.hcl line 2, column 6, in rule "a\nb":
   2: rule "a\nb" {
           ^^^^^^

  the name of a rule has characters that cannot be printed: it goes into tickets and logs
