version = 1
trigger {
  option = true
}
rule "r" {
  when = true
  grant { memory = gpu.model == "H200" ? "16G" : gpu.product == "NVIDIA RTX PRO 6000" ? "12G" : "8G" }
}
=== job {"HasOption": true, "GPU": {"Product": "NVIDIA H200"}}
rule "r": granted memory=16384M
=== job {"HasOption": true, "GPU": {"Product": "NVIDIA H200 MIG 1g.18gb", "MIG": true}}
rule "r": granted memory=16384M
=== job {"HasOption": true, "GPU": {"Product": "NVIDIA RTX PRO 6000"}}
rule "r": granted memory=12288M
=== job {"HasOption": true, "GPU": {"Product": "NVIDIA A30"}}
rule "r": granted memory=8192M
