# Tests: mpsctl policy test --policy students.hcl students_test.hcl
version = 1

case "a student" {
  job {
    requested = ["mps"]
    groups    = ["users", "students"]
  }
  expect {
    rule = "students"
    grant {
      share   = "25%"
      ceiling = 25
    }
  }
}

case "a member of staff" {
  job {
    requested = ["mps"]
    groups    = ["users"]
  }
  expect {
    rule = "all"
    grant { ceiling = 100 }
  }
}
