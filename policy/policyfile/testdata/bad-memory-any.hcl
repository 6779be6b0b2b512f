version = 1
trigger {
  option = true
}
rule "r" {
  when = true
  grant {
    memory = "${gpu.memory}M"
  }
}
=== wrong
Error: Unknown value

  on policy.hcl line 8, column 14, in rule "r":
   8:     memory = "${gpu.memory}M"
                   ^^^^^^^^^^^^^^^^

  memory can be any string here: choose with ?: between constant ones
