version = 1
rule "r" {
  when = true
  grant {
    overlap = job.ntasks
  }
}
=== job {"NTasks": 3}
rule "r": granted share=overlap:3
=== job {}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:15: Unusable value 0: overlap: want a number from 1 to 48: tell the site's admins
=== job {"NTasks": 49}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:15: Unusable value 49: overlap: want a number from 1 to 48: tell the site's admins
