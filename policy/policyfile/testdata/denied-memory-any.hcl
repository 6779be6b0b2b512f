version = 1
trigger {
  option = true
}
rule "r" {
  when = true
  grant {
    memory = "${gpu.memory}M"
  }
}
=== job {"HasOption": true, "GPU": {"MemoryMiB": 143771}}
rule "r": granted memory=143771M
=== job {"HasOption": true}
rule "r": denied: this site's policy cannot decide: policy.hcl:8:14: Unusable value "0M": memory: want none, even, or a size of whole MiB, like 8G or 16384M: tell the site's admins
