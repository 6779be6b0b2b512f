version = 1
rule "r" {
  when = jbo.user == ""
  grant {
    ceiling = 999
    share   = "odd"
  }
}
=== wrong
Error: Unknown variable

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = jbo.user == ""
               ^^^

  There is no variable named "jbo". Did you mean "job"?

Error: Unusable value 999

  on policy.hcl line 5, column 15, in rule "r":
   5:     ceiling = 999
                    ^^^

  ceiling: want a number from 1 to 100

Error: Unusable value "odd"

  on policy.hcl line 6, column 15, in rule "r":
   6:     share   = "odd"
                    ^^^^^

  share: want none, even, overlap:F, PCT% or a list like 3:1
