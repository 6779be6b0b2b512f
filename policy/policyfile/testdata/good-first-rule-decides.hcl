version = 1
trigger {
  option = true
}
rule "small" {
  when = length(job.gpus) == 1
  grant {
    scope       = "gpu"
    drain_grace = "1m30s"
  }
}
rule "all" {
  when = true
  grant {}
}
=== job {"HasOption": true, "GPUs": [3]}
rule "small": granted scope=gpu drain_grace=1m30s
=== job {"HasOption": true, "GPUs": [3, 4]}
rule "all": granted
