# Locals, defaults, options of users and expressions in one policy.
version = 1

trigger {
  constraint = "mps" # --constraint=mps
  comment    = "mps" # --comment=mps or --comment=mps:share=even,scope=gpu
  option     = true  # --mps[=…], from SPANK
}

locals {
  staff = ["anna", "bob"]
  ranks = { chem = 8, phys = 16 }
}

defaults {
  on_failure = "run_without"
  keep_logs  = "on_failure"
}

rule "teaching" {
  when = job.partition == "edu" && length(job.gpus) > 1
  deny = "MPS on the edu partition is for one GPU at a time, and this job has ${length(job.gpus)}"
}

rule "ensembles" {
  when  = startswith(job.account, "chem") || contains(local.staff, job.user)
  allow = ["share", "memory", "priority"]
  grant {
    scope       = length(job.gpus) > 1 ? "gpu" : "job"
    memory      = gpu.memory > 100000 ? "16G" : "8G"
    max_clients = lookup(local.ranks, job.account, 4)
  }
}

rule "all" {
  when = true
  grant {}
}
