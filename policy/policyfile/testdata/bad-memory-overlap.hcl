version = 1
rule "r" {
  when = true
  grant {
    memory_overlap = 49
  }
}
=== wrong
Error: Out of range

  on policy.hcl line 5, column 22, in rule "r":
   5:     memory_overlap = 49
                           ^^

  memory_overlap is 1 to 48, not 49
