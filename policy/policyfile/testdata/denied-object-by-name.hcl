version = 1
locals {
  limit = {
    chem = 4
  }
}
rule "r" {
  when = local.limit[job.account] > 1
  grant {}
}
=== job {"Account": "chem"}
rule "r": granted
=== job {"Account": "phys"}
rule "r": denied: this site's policy cannot decide: policy.hcl:8:21: Invalid index: there is no such element: write try(…, DEFAULT): tell the site's admins
