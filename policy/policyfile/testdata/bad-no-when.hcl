version = 1
rule "r" {
  grant {}
}
=== wrong
Error: Missing required argument

  on policy.hcl line 2, column 10, in rule "r":
   2: rule "r" {
               ^

  The argument "when" is required, but no definition was found.
