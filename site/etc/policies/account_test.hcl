# Tests: mpsctl policy test --policy account.hcl account_test.hcl
version = 1

case "an expired account" {
  job {
    requested = ["mps"]
    account   = "trial"
  }
  expect { denied = "account trial has no MPS" }
}

case "a paid account" {
  job {
    requested = ["mps"]
    account   = "chem"
  }
  expect { rule = "all" }
}
