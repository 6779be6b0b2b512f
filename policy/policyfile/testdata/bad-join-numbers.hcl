version = 1
rule "r" {
  when = join(",", job.gpus) == "0"
  grant {}
}
=== wrong
Error: Wrong type

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = join(",", job.gpus) == "0"
                         ^^^^^^^^

  join takes a list of strings, not of numbers
