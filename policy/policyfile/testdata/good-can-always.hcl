version = 1
rule "r" {
  when = can(job.user)
  grant {}
}
=== job {"User": "anna"}
rule "r": granted
