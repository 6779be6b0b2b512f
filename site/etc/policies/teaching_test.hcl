# Tests: mpsctl policy test --policy teaching.hcl teaching_test.hcl
version = 1

case "a course with two GPUs" {
  job {
    requested = ["mps"]
    partition = "edu"
    gpus      = [0, 1]
  }
  expect {
    rule   = "teaching"
    denied = "one GPU at a time"
  }
}

case "a chemist narrows the share" {
  job {
    account = "chem-a"
    option  = "share=even"
    gpus    = [0]
  }
  gpu { memory = 143771 }
  expect {
    rule = "ensembles"
    grant {
      share  = "even"
      memory = "16G"
    }
  }
}

case "no one asked" {
  job { account = "chem-a" }
  expect { asked = false }
}
