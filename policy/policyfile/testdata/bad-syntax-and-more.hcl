version = 1
trigger {
  option = true
}
rule "a" {
  when = job.gpu == 1
  grant { share = "odd" }
}
rule "b" {
  when = job.user = "x"
  grant { ceiling = 999 }
}
rule "c" {
  when = true
  grant { scope = nod }
}
rule "d" {
  when = (true
  grant {}
}
rule "e" {
  when = tru
  grant {}
}
=== wrong
Error: Unsupported attribute

  on policy.hcl line 6, column 13, in rule "a":
   6:   when = job.gpu == 1
                  ^^^^

  job has no attribute named "gpu". Did you mean "gpus"?

Error: Unusable value "odd"

  on policy.hcl line 7, column 19, in rule "a":
   7:   grant { share = "odd" }
                        ^^^^^

  share: want none, even, overlap:F, PCT% or a list like 3:1

Error: Missing newline after argument

  on policy.hcl line 10, column 19, in rule "b":
  10:   when = job.user = "x"
                        ^

  An argument definition must end with a newline. A comparison is written ==.

Error: Unknown variable

  on policy.hcl line 15, column 19, in rule "c":
  15:   grant { scope = nod }
                        ^^^

  There is no variable named "nod". Did you mean "node"?

Error: Unbalanced parentheses

  on policy.hcl line 19, column 3, in rule "d":
  19:   grant {}
        ^^^^^

  Expected a closing parenthesis to terminate the expression.

Error: Unknown variable

  on policy.hcl line 22, column 10, in rule "e":
  22:   when = tru
               ^^^

  There is no variable named "tru". Did you mean "true"?
