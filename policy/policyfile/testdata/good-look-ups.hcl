version = 1
trigger {
  option = true
}
rule "staff" {
  when = contains(job.groups, "staff") && contains(node.features, "fast")
  grant {}
}
rule "mig" {
  when = gpu.mig
  deny = "no MPS on ${gpu.model}: an instance has ${gpu.sms} SMs"
}
rule "large" {
  when = gpu.memory > 100000 && node.gpus > 4 && startswith(node.driver, "580.")
  grant {
    memory = gpu.memory > 140000 ? "16G" : "8G"
  }
}
=== job {"HasOption": true, "Groups": ["staff"], "Features": ["fast"]}
rule "staff": granted
=== job {"HasOption": true, "GPU": {"Product": "NVIDIA H200 MIG 1g.18gb", "SMs": 16, "MIG": true}}
rule "mig": denied: no MPS on H200: an instance has 16 SMs
=== job {"HasOption": true, "GPU": {"MemoryMiB": 143771}, "NodeGPUs": 8, "Driver": "580.159.04"}
rule "large": granted memory=16384M
=== job {"HasOption": true, "GPU": {"MemoryMiB": 120000}, "NodeGPUs": 8, "Driver": "580.1"}
rule "large": granted memory=8192M
=== job {"HasOption": true}
rule "": denied: no rule of this site's policy is for this job
