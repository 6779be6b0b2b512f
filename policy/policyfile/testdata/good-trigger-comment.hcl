version = 1
trigger {
  comment = "mps"
}
rule "r" {
  when = true
  grant {}
}
=== job {"Comment": "mps"}
rule "r": granted
=== job {"Comment": "mps:"}
rule "r": granted
=== job {"Comment": "mps:drain_grace=1s"}
rule "r": denied: cannot take drain_grace=1s: this site's policy lets this job set no option
=== job {"Comment": "mpsx"}
not asked
=== job {"Comment": " mps"}
not asked
=== job {"Comment": ""}
not asked
=== job {"Requested": ["mps"]}
not asked
