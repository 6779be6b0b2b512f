version = 1
rule "r" {
  when = job == 1
  grant {}
}
=== wrong
Error: Incomplete name

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = job == 1
               ^^^

  job has attributes: write job.NAME
