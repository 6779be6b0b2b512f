# MIG instances are small: few ranks share one, and each may use all of it. Their compute mode is not changed.
version = 1

trigger {
  constraint = "mps"
}

rule "instances" {
  when = gpu.mig
  grant {
    share       = "none"
    memory      = "even"
    max_clients = 4
  }
}

rule "whole GPUs" {
  when = true
  grant {}
}
