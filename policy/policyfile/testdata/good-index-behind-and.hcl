version = 1
rule "r" {
  when = length(job.gpus) > 0 && job.gpus[0] == 3
  grant {}
}
=== job {}
not asked
=== job {"GPUs": [3]}
rule "r": granted
=== job {"GPUs": [4]}
not asked
