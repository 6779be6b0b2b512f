version = 1
rule "r" {
  when = job.gpus[0] == 3
  grant {}
}
=== job {"GPUs": [3]}
rule "r": granted
=== job {}
rule "r": denied: this site's policy cannot decide: policy.hcl:3:18: Invalid index: there is no such element: write try(…, DEFAULT): tell the site's admins
