rule "r" {
  when = true
  grant {}
}
=== wrong
Error: Missing required argument

  on policy.hcl line 1, column 1, in rule "r":
   1: rule "r" {
      ^

  The argument "version" is required, but no definition was found.
