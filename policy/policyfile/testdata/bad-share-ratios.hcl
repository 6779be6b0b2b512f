version = 1
rule "r" {
  when = true
  grant {
    share = "70%,40%"
  }
}
=== wrong
Error: Unusable value "70%,40%"

  on policy.hcl line 5, column 13, in rule "r":
   5:     share = "70%,40%"
                  ^^^^^^^^^

  share: it adds up to 110 %: want at most 100 %
