version = 1
rule "r" {
  when  = true
  allow = ["share", "on_failure"]
  grant {}
}
=== wrong
Error: Unknown option

  on policy.hcl line 4, column 11, in rule "r":
   4:   allow = ["share", "on_failure"]
                ^^^^^^^^^^^^^^^^^^^^^^^

  a user can set scope, compute_mode, share, overlap, ceiling, memory, memory_overlap, priority, max_clients, hold, pause, drain_grace, keep_logs, not "on_failure"
