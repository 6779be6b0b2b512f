version = 1
locals {
  first = job.gpus[0]
}
rule "r" {
  when = local.first == 0
  grant {}
}
=== job {"GPUs": [0]}
rule "r": granted
=== job {}
rule "r": denied: this site's policy cannot decide: policy.hcl:3:19: Invalid index: there is no such element: write try(…, DEFAULT): tell the site's admins
