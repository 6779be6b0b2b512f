version = 1
rule "r" {
  when = node.hostname == "n1"
  grant {}
}
=== wrong
Error: Unsupported attribute

  on policy.hcl line 3, column 14, in rule "r":
   3:   when = node.hostname == "n1"
                   ^^^^^^^^^

  node has no attribute named "hostname". It has name, features, gpus, driver.
