version = 1
rule "a" {
  when = true
  deny = "not today
}
rule "b" {
  when = true
  grant { ceiling = 999 }
}
=== wrong
Error: Open string

  on policy.hcl line 4, column 20:
   4:   deny = "not today
                         ^

  a string ends in the line in which it begins: write the closing quote
