version = 1
rule "r" {
  when = job.uid * 1e-20 == 0
  grant {}
}
=== wrong
Error: Out of range

  on policy.hcl line 3, column 20, in rule "r":
   3:   when = job.uid * 1e-20 == 0
                         ^^^^^

  a number is 0, or from 1e-09 to 1e+15
