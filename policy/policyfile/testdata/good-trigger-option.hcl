version = 1
trigger {
  option = true
}
rule "r" {
  when = true
  grant {}
}
=== job {"HasOption": true}
rule "r": granted
=== job {"HasOption": true, "Option": "nonsense"}
rule "r": denied: cannot read options "nonsense": there is no option "nonsense": want OPTIONS
=== job {"Comment": "mps"}
not asked
