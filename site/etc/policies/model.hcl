# More memory and places for ranks on large GPUs.
version = 1

trigger {
  constraint = "mps"
}

rule "large" {
  when = contains(["H200", "B200"], gpu.model)
  grant { memory = "16G" }
}

rule "a100" {
  when = startswith(gpu.model, "A100")
  grant {
    memory      = gpu.model == "A100-80" ? "8G" : "4G"
    max_clients = 10
  }
}

rule "others" {
  when = true
  deny = "MPS is for our H200, B200 and A100 nodes, and this GPU is ${gpu.product}"
}
