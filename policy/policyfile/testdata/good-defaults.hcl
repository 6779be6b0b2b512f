version = 1
trigger {
  option = true
}
defaults {
  share       = "even"
  max_clients = length(job.gpus) > 1 ? 8 : 16
  keep_logs   = "on_failure"
}
rule "own" {
  when = job.user == "a"
  grant {
    share = "overlap:3"
  }
}
rule "fixed" {
  when = job.user == "b"
  grant {
    max_clients = 4
  }
}
rule "all" {
  when = true
  grant {}
}
=== job {"HasOption": true, "User": "a"}
rule "own": granted share=overlap:3 max_clients=16 keep_logs=on_failure
=== job {"HasOption": true, "User": "b"}
rule "fixed": granted share=even max_clients=4 keep_logs=on_failure
=== job {"HasOption": true, "User": "c", "GPUs": [0, 1]}
rule "all": granted share=even max_clients=8 keep_logs=on_failure
