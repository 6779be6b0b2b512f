version = 1
rule "r" {=== wrong
Error: Unclosed configuration block

  on policy.hcl line 2, column 10, in rule "r":
   2: rule "r" {
               ^

  There is no closing brace for this block before the end of the file. This may be caused by incorrect brace nesting elsewhere in this file.
