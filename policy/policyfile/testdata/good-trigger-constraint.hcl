version = 1
trigger {
  constraint = "mps"
}
rule "r" {
  when = true
  grant {}
}
=== job {"Requested": ["a100", "mps"]}
rule "r": granted
=== job {"Requested": ["mps2"]}
not asked
=== job {"HasOption": true}
not asked
=== job {"Comment": "mps"}
not asked
