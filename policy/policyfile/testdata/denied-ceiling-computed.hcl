version = 1
rule "r" {
  when = true
  grant {
    ceiling = 200 / max(1, length(job.gpus))
  }
}
=== job {"GPUs": [0, 1]}
rule "r": granted
=== job {"GPUs": [0]}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:15: Unusable value 200: ceiling: want a number from 1 to 100: tell the site's admins
