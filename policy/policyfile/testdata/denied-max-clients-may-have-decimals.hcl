version = 1
rule "r" {
  when = true
  grant {
    max_clients = min(48, max(1, job.ntasks / 2))
  }
}
=== job {"NTasks": 6}
rule "r": granted max_clients=3
=== job {"NTasks": 7}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:19: Unusable value 3.5: max_clients: want a whole number from 1 to 60: tell the site's admins
