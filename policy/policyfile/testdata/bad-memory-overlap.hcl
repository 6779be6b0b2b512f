version = 1
rule "r" {
  when = true
  grant {
    memory_overlap = 49
  }
}
=== wrong
Error: Unusable value 49

  on policy.hcl line 5, column 22, in rule "r":
   5:     memory_overlap = 49
                           ^^

  memory_overlap: want a number from 1 to 48
