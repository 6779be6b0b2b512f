# Tests: mpsctl policy test --policy model.hcl model_test.hcl
version = 1

case "an H200" {
  job { requested = ["mps"] }
  gpu { product = "NVIDIA H200" }
  expect {
    rule = "large"
    grant { memory = "16GB" }
  }
}

case "a small A100" {
  job { requested = ["mps"] }
  gpu { product = "NVIDIA A100-SXM4-40GB" }
  expect {
    grant { memory = "4G" }
  }
}

case "a T4" {
  job { requested = ["mps"] }
  gpu { product = "Tesla T4" }
  expect { denied = "this GPU is Tesla T4" }
}
