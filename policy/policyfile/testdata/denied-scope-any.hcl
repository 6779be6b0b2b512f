version = 1
rule "r" {
  when = true
  grant {
    scope = job.comment
  }
}
=== job {"Comment": "gpu"}
rule "r": granted scope=gpu
=== job {"Comment": "node"}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:13: Unusable value "node": scope: want job or gpu. Did you mean "none"?: tell the site's admins
=== job {"Comment": "a\u001b[2J\nb"}
rule "r": denied: this site's policy cannot decide: policy.hcl:5:13: Unusable value "a\x1b[2J\nb": scope: want job or gpu: tell the site's admins
