version = 1
trigger {
  option = true
}
locals {
  staff   = ["anna", "bob"]
  limit   = { chem = 4, phys = 8 }
  large   = job.ntasks > local.most
  most    = 2 * 8
  trusted = contains(local.staff, job.user) || local.large
}
rule "r" {
  when = local.trusted
  grant {
    max_clients = lookup(local.limit, job.account, 2)
    share       = "overlap:${try(local.limit[job.account], 1)}"
  }
}
=== job {"HasOption": true, "User": "anna", "Account": "chem"}
rule "r": granted share=overlap:4 max_clients=4
=== job {"HasOption": true, "User": "eve", "NTasks": 17, "Account": "phys"}
rule "r": granted share=overlap:8 max_clients=8
=== job {"HasOption": true, "User": "eve", "NTasks": 16}
rule "": denied: no rule of this site's policy is for this job
=== job {"HasOption": true, "User": "bob"}
rule "r": granted share=even max_clients=2
