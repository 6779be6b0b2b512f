# Each rank of a student has at most a quarter of the GPU, and an even part of its memory.
version = 1

trigger {
  constraint = "mps"
}

rule "students" {
  when = contains(job.groups, "students")
  grant {
    share    = "25%"
    ceiling  = 25
    memory   = "even"
    priority = "low"
  }
}

rule "all" {
  when  = true
  allow = ["share", "memory"]
  grant {}
}
