version = 1
trigger {
  option = true
}
rule "r" {
  when  = true
  allow = ["share", "memory", "compute_mode", "priority"]
  grant {
    share        = "none"
    compute_mode = "unchanged"
    priority     = "low"
  }
}
=== job {"HasOption": true, "Option": "share=none"}
rule "r": granted compute_mode=unchanged share=none priority=low
=== job {"HasOption": true, "Option": "share=even"}
rule "r": granted compute_mode=unchanged share=even priority=low
=== job {"HasOption": true, "Option": "share=overlap:48"}
rule "r": granted compute_mode=unchanged share=overlap:48 priority=low
=== job {"HasOption": true, "Option": "share=5%"}
rule "r": granted compute_mode=unchanged share=5% priority=low
=== job {"HasOption": true, "Option": "share=overlap:5"}
rule "r": granted compute_mode=unchanged share=overlap:5 priority=low
=== job {"HasOption": true, "Option": "mem=even"}
rule "r": granted compute_mode=unchanged share=none memory=even priority=low
=== job {"HasOption": true, "Option": "mem=1G"}
rule "r": granted compute_mode=unchanged share=none memory=1024M priority=low
=== job {"HasOption": true, "Option": "compute_mode=exclusive_process"}
rule "r": granted share=none priority=low
=== job {"HasOption": true, "Option": "priority=normal"}
rule "r": denied: cannot take priority=normal: the rule gives low, and an option can only narrow that
