version = 1
rule "r" {
  when = true
  grant {
    share = "overlap:${job.ntasks}"
  }
}
=== job {"NTasks": 3}
rule "r": granted share=overlap:3
=== job {}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:13: Unusable value "overlap:0": share: want a factor from 1 to 48, with at most six decimals, like overlap:2: tell the site's admins
=== job {"NTasks": 49}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:13: Unusable value "overlap:49": share: want a factor from 1 to 48, with at most six decimals, like overlap:2: tell the site's admins
