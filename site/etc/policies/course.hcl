# A course with a reservation: at most eight ranks share a GPU, and a node that fails does not stop the course.
version = 1

trigger {
  constraint = "mps"
}

rule "course" {
  when = startswith(job.reservation, "gpu-course")
  grant {
    share       = "even"
    memory      = "even"
    max_clients = 8
    on_failure  = "run_without"
  }
}

rule "all" {
  when = true
  grant {}
}
