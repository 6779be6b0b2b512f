version = 1
rule "r" {
  when = true
  grant {
    share = []
  }
}
=== wrong
Error: Wrong type

  on policy.hcl line 5, column 13, in rule "r":
   5:     share = []
                  ^^

  share is a string, not a list
