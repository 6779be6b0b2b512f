version = 1
trigger {
  option = true
}
locals {
  first  = job.gpus[0]
  second = local.first + 1
  safe   = try(local.second, 7)
}
rule "unaware" {
  when = job.user == "root"
  grant {}
}
rule "guarded" {
  when = job.user == "anna" && local.second > 3
  grant {}
}
rule "tried" {
  when = local.safe == 7
  deny = job.user == "bob" ? "no: ${local.first}" : "no GPU"
}
rule "rest" {
  when = can(local.second)
  grant {
    max_clients = local.first
  }
}
=== job {"HasOption": true, "User": "root"}
rule "unaware": granted
=== job {"HasOption": true, "User": "anna"}
rule "guarded": denied: this site's policy cannot decide: policy.hcl:6:20: Invalid index: there is no such element: write try(…, DEFAULT): tell the site's admins
=== job {"HasOption": true, "User": "anna", "GPUs": [5]}
rule "guarded": granted
=== job {"HasOption": true, "User": "eve"}
rule "tried": denied: no GPU
=== job {"HasOption": true, "User": "bob"}
rule "tried": denied: this site's policy cannot decide: policy.hcl:6:20: Invalid index: there is no such element: write try(…, DEFAULT): tell the site's admins
=== job {"HasOption": true, "User": "bob", "GPUs": [4]}
rule "rest": granted max_clients=4
=== job {"HasOption": true, "User": "bob", "GPUs": [0]}
rule "rest": denied: this site's policy cannot decide: policy.hcl:25:19: Unusable value 0: max_clients: want a whole number from 1 to 60: tell the site's admins
