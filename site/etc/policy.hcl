# What jobs get from slurm-mps on this node. The first rule whose "when" holds decides; a job that none is for runs
# without MPS. Every attribute of grant may be left out; the values here are the defaults.
version = 1

rule "mps" {
  # sbatch --constraint=mps
  when = contains(job.requested, "mps")

  grant {
    scope        = "job"               # or "gpu": a daemon for each GPU, so that a fault stays on its GPU
    compute_mode = "exclusive_process" # or "unchanged"
    share        = "even"              # or "none"
    overlap      = 2                   # every SM is dealt twice: best on real programs
    ceiling      = 100                 # percent of a GPU that no rank can exceed
    on_failure   = "drain"             # or "run_without"
    drain_grace  = "10s"               # for clients that outlive their job
  }
}
