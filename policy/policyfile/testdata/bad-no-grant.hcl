version = 1
rule "r" {
  when = true
}
=== wrong
Error: Neither grant nor deny

  on policy.hcl line 2, column 1, in rule "r":
   2: rule "r" {
      ^^^^^^^^

  rule "r" decides nothing: write a grant block, or deny = "the reason"
