# An account without MPS. Its jobs still run, and their output has the reason.
version = 1

trigger {
  constraint = "mps"
}

rule "expired" {
  when = contains(["trial", "guests"], job.account)
  deny = "account ${job.account} has no MPS: ask support@example.org"
}

rule "all" {
  when = true
  grant {}
}
