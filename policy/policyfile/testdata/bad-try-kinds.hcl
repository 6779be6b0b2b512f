version = 1
rule "r" {
  when = try(job.gpus[0], "none") == 0
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 27, in rule "r":
   3:   when = try(job.gpus[0], "none") == 0
                                ^^^^^^

  try takes arguments of one kind: this is a string, and before it stands a number
