version = 1
rule "r" {
  when = 100 / job.ntasks > 10
  grant {}
}
=== job {"NTasks": 4}
rule "r": granted
=== job {}
rule "r": denied: this site's policy cannot decide: policy.hcl:3:10: Operation failed: Error during operation: the divisor is 0: write max(1, …): tell the site's admins
