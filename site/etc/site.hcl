# Where helper programs are on this node, and how long a prolog and an epilog may take. You may leave out each line.
# slurmd gives a prolog neither PATH nor LD_LIBRARY_PATH, so all paths are absolute.

# mps_control     = "/usr/bin/nvidia-cuda-mps-control"
# nvml_library    = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1" # without it the loader finds it
# library_path    = "/usr/local/nvidia/lib64"                     # LD_LIBRARY_PATH for mps_control
# gres_conf       = "/etc/slurm/gres.conf"                        # without it the one beside Slurm's slurm.conf
# prolog_deadline = "60s"
# epilog_deadline = "60s"
# usage_interval  = "10s"                                       # how often a job's use of its GPUs is sampled; "0s": never

# shared_reports  = "/home/%u/.slurm-mps"                         # where slurm-mps-reports.path copies a user's reports
