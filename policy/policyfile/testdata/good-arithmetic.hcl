version = 1
trigger {
  option = true
}
rule "r" {
  when = true
  grant {
    share       = "overlap:${min(48, max(1, floor(job.ntasks / max(1, length(job.gpus)) / 2)))}"
    max_clients = min(48, max(1, ceil(job.ntasks / max(1, length(job.gpus)))))
    ceiling     = 100 - 10 * (job.ntasks % 3)
  }
}
=== job {"HasOption": true}
rule "r": granted share=even max_clients=1
=== job {"HasOption": true, "NTasks": 7, "GPUs": [0, 1]}
rule "r": granted share=even ceiling=90 max_clients=4
=== job {"HasOption": true, "NTasks": 4000000000, "GPUs": [0]}
rule "r": granted share=overlap:48 ceiling=90 max_clients=48
=== job {"HasOption": true, "NTasks": 8}
rule "r": granted share=overlap:4 ceiling=80 max_clients=8
