version = 1
trigger {
  option = true
}
rule "r" {
  when  = true
  allow = ["share", "memory"]
  grant {
    share = job.ntasks == 2 ? "3:1" : "even"
  }
}
=== job {"HasOption": true, "NTasks": 2}
rule "r": granted share=3:1
=== job {"HasOption": true, "NTasks": 3}
rule "r": granted share=even
=== job {"HasOption": true, "NTasks": 2, "Option": "share=70%,30%,mem=8G"}
rule "r": granted share=70%,30% memory=8192M
=== job {"HasOption": true, "NTasks": 2, "Option": "share=none"}
rule "r": denied: cannot take share=none: the rule gives 3:1, and an option can only narrow that
