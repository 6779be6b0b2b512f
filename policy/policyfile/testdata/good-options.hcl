version = 1
trigger {
  option  = true
  comment = "mps"
}
rule "r" {
  when  = true
  allow = ["scope", "share", "memory", "priority", "max_clients", "drain_grace", "hold", "keep_logs", "ceiling", "memory_overlap"]
  grant {
    memory         = "8G"
    memory_overlap = 2
    max_clients    = 16
    ceiling        = 80
    keep_logs      = "on_failure"
  }
}
=== job {"HasOption": true, "Option": ""}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "share=even"}
rule "r": granted share=even ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "share=overlap:1.5"}
rule "r": granted share=overlap:1.5 ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "share=overlap:3"}
rule "r": denied: cannot take share=overlap:3: the rule gives overlap:2, and an option can only narrow that
=== job {"HasOption": true, "Option": "share=none"}
rule "r": denied: cannot take share=none: the rule gives overlap:2, and an option can only narrow that
=== job {"HasOption": true, "Option": "share=50%"}
rule "r": denied: cannot take share=50%: the rule gives overlap:2, and an option can only narrow that
=== job {"HasOption": true, "Option": "share=overlap:1"}
rule "r": granted share=even ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "share=overlap:2"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "share=overlap:2.000001"}
rule "r": denied: cannot take share=overlap:2.000001: the rule gives overlap:2, and an option can only narrow that
=== job {"HasOption": true, "Option": "mem=4G"}
rule "r": granted ceiling=80 memory=4096M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "mem=9G"}
rule "r": denied: cannot take memory=9G: the rule gives 8192M, and an option can only narrow that
=== job {"HasOption": true, "Option": "mem=even"}
rule "r": granted ceiling=80 memory=even memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "mem=none"}
rule "r": denied: cannot take memory=none: the rule gives 8192M, and an option can only narrow that
=== job {"HasOption": true, "Option": "priority=low"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 priority=low max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "max_clients=16"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "max_clients=17"}
rule "r": denied: cannot take max_clients=17: the rule gives 16, and an option can only narrow that
=== job {"HasOption": true, "Option": "ceiling=80"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "ceiling=81"}
rule "r": denied: cannot take ceiling=81: the rule gives 80, and an option can only narrow that
=== job {"HasOption": true, "Option": "drain_grace=1s"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16 drain_grace=1s keep_logs=on_failure
=== job {"HasOption": true, "Option": "drain_grace=11s"}
rule "r": denied: cannot take drain_grace=11s: the rule gives 10s, and an option can only narrow that
=== job {"HasOption": true, "Option": "hold=5s"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16 hold=5s keep_logs=on_failure
=== job {"HasOption": true, "Option": "hold=0s"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16 hold=0s keep_logs=on_failure
=== job {"HasOption": true, "Option": "hold=31s"}
rule "r": denied: cannot take hold=31s: the rule gives 30s, and an option can only narrow that
=== job {"HasOption": true, "Option": "keep_logs=never"}
rule "r": granted ceiling=80 memory=8192M memory_overlap=2 max_clients=16
=== job {"HasOption": true, "Option": "keep_logs=always"}
rule "r": denied: cannot take keep_logs=always: the rule gives on_failure, and an option can only narrow that
=== job {"HasOption": true, "Option": "memory_overlap=1"}
rule "r": granted ceiling=80 memory=8192M max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "memory_overlap=3"}
rule "r": denied: cannot take memory_overlap=3: the rule gives 2, and an option can only narrow that
=== job {"HasOption": true, "Option": "compute_mode=unchanged"}
rule "r": denied: cannot take compute_mode=unchanged: this site's policy lets this job set scope, share, memory, priority, max_clients, drain_grace, hold, keep_logs, ceiling, memory_overlap alone
=== job {"HasOption": true, "Option": "scope=gpu, share=even"}
rule "r": granted scope=gpu share=even ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "Option": "share=even,share=even"}
rule "r": denied: cannot read options "share=even,share=even": share is given twice
=== job {"HasOption": true, "Option": "nonsense"}
rule "r": denied: cannot read options "nonsense": there is no option "nonsense": want OPTIONS
=== job {"HasOption": true, "Option": "share"}
rule "r": denied: cannot read options "share": share has no value: want share=VALUE
=== job {"HasOption": true, "Option": "="}
rule "r": denied: cannot read options "=": there is no option "": want OPTIONS
=== job {"HasOption": true, "Option": "on_failure=run_without"}
rule "r": denied: cannot read options "on_failure=run_without": there is no option "on_failure": want OPTIONS
=== job {"Comment": "mps:scope=gpu", "HasOption": true, "Option": "share=overlap:1"}
rule "r": granted scope=gpu share=even ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"Comment": "mps:scope=gpu", "HasOption": true, "Option": "scope=gpu"}
rule "r": granted scope=gpu ceiling=80 memory=8192M memory_overlap=2 max_clients=16 keep_logs=on_failure
=== job {"Comment": "mps:scope=gpu", "HasOption": true, "Option": "scope=job"}
rule "r": denied: cannot read options: scope is "job" in --mps and "gpu" in the comment
