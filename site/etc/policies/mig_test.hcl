# Tests: mpsctl policy test --policy mig.hcl mig_test.hcl
version = 1

case "an instance" {
  job { requested = ["mps"] }
  gpu {
    product = "NVIDIA H200 MIG 1g.18gb"
    mig     = true
  }
  expect {
    rule = "instances"
    grant { share = "none" }
  }
}

case "a whole GPU" {
  job { requested = ["mps"] }
  gpu { product = "NVIDIA H200" }
  expect { rule = "whole GPUs" }
}
