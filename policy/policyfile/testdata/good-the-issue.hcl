version = 1

trigger {
  constraint = "mps"
  comment    = "mps"
  option     = true
}

rule "teaching" {
  when = job.partition == "edu" && length(job.gpus) > 1
  deny = "MPS on the edu partition is for one GPU at a time"
}

rule "ensembles" {
  when = contains(job.requested, "mps") && startswith(job.account, "chem")
  grant {
    scope          = "gpu"
    compute_mode   = "exclusive_process"
    share          = "overlap:2"
    ceiling        = 100
    memory         = "even"
    memory_overlap = 1.5
    priority       = "normal"
    max_clients    = 48
    hold           = "30s"
    on_failure     = "run_without"
    drain_grace    = "10s"
    keep_logs      = "on_failure"
  }
}
=== job {"Requested": ["mps"], "Account": "chem-a", "Partition": "gpu"}
rule "ensembles": granted scope=gpu memory=even memory_overlap=1.5 max_clients=48 on_failure=run_without keep_logs=on_failure
=== job {"Requested": ["mps"], "Account": "phys"}
rule "": denied: no rule of this site's policy is for this job
=== job {"Requested": ["nomps"], "Account": "chem"}
not asked
=== job {"Requested": ["mps"], "Partition": "edu", "GPUs": [0, 1]}
rule "teaching": denied: MPS on the edu partition is for one GPU at a time
=== job {"HasOption": true, "Account": "chem"}
rule "": denied: no rule of this site's policy is for this job
=== job {"Comment": "mps:share=even", "Requested": ["mps"], "Account": "chem"}
rule "ensembles": denied: cannot take share=even: this site's policy lets this job set no option
