rule "r" {
  when = true
  grant {}
}
=== wrong
Error: Missing version

  on policy.hcl line 1, column 1:
   1: rule "r" {
      ^

  a file begins with version = 1, outside of every block
