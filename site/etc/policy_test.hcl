# Tests of policy.hcl: mpsctl policy test policy_test.hcl
version = 1

case "a constraint asks" {
  job {
    requested = ["a100", "mps"]
    gpus      = [0, 1]
  }
  expect {
    rule = "mps"
    grant {
      scope       = "job"
      share       = "overlap:2"
      max_clients = 60
    }
  }
}

case "another constraint does not" {
  job { requested = ["nomps"] }
  expect { asked = false }
}

case "a comment asks, with options" {
  job {
    comment = "mps:share=even,scope=gpu"
    gpus    = [0]
  }
  expect {
    rule = "mps"
    grant {
      scope = "gpu"
      share = "even"
    }
  }
}

case "a comment about something else does not ask" {
  job { comment = "mpsimulation of a reactor" }
  expect { asked = false }
}

case "the option asks" {
  job { option = "" }
  expect { rule = "mps" }
}

case "options narrow" {
  job { option = "ceiling=50,share=overlap:1.5,mem=8G,priority=low,max_clients=8" }
  expect {
    rule = "mps"
    grant {
      ceiling     = 50
      share       = "overlap:1.5"
      memory      = "8G"
      priority    = "low"
      max_clients = 8
    }
  }
}

case "options do not widen" {
  job { option = "share=overlap:3" }
  expect {
    rule   = "mps"
    denied = "an option can only narrow"
  }
}

case "hold is the site's to set" {
  job { option = "hold=5s" }
  expect { denied = "cannot take hold=5s" }
}
