# The policy of slurm-mps on this node. The first rule whose "when" is true decides about a job that asks for MPS in one
# of the trigger's ways. More rules may stand in policy.d/*.hcl; docs/policy.md has all words.
version = 1
record  = "mps" # or "all": the use of GPUs by jobs without MPS is recorded, too

trigger {
  constraint = "mps" # sbatch --constraint=mps
  comment    = "mps" # sbatch --comment=mps, or --comment=mps:share=even,scope=gpu
  option     = true  # sbatch --mps, or --mps=share=even,scope=gpu, where the SPANK plugin is installed
}

rule "mps" {
  when = true

  # Options that users may lower, in --mps=… or --comment=mps:….
  allow = ["scope", "share", "ceiling", "memory", "priority", "max_clients"]

  # Every attribute may be left out; the values here are the defaults.
  grant {
    scope          = "job"               # or "gpu": a daemon for each GPU, so that a fault stays on its GPU
    compute_mode   = "exclusive_process" # or "unchanged"
    share          = "overlap:2"         # or "even", "none", "25%"; two ranks share each SM: best on real programs
    ceiling        = 100                 # percent of a GPU that no rank can exceed
    memory         = "none"              # or "even", or a size like "8G": a rank's limit
    memory_overlap = 1                   # oversubscription of memory = "even"
    priority       = "normal"            # or "low"
    max_clients    = 60                  # ranks on one GPU; MPS serves 48, or 60 with driver 590 or later
    share_gpu      = "turns"             # or "user": jobs of one user on a GPU (gres/shard, gres/mps) share a daemon
    hold           = "30s"               # the files of a dead client, so that its neighbours live; "0s": no guard
    pause          = "5s"                # its neighbours, if its memory is needed, until its work is done; "0s": never
    on_failure     = "drain"             # or "run_without"
    drain_grace    = "10s"               # for clients that outlive their job
    keep_logs      = "never"             # or "on_failure" or "always"
    unplaced       = "share"             # or "deny": processes that neither mpirun-wrap nor srun starts
  }
}
