# Tests: mpsctl policy test --policy course.hcl course_test.hcl
version = 1

case "in the course" {
  job {
    requested   = ["mps"]
    reservation = "gpu-course-7"
  }
  expect {
    rule = "course"
    grant {
      share       = "even"
      max_clients = 8
    }
  }
}

case "beside the course" {
  job { requested = ["mps"] }
  expect { rule = "all" }
}
