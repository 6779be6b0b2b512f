version = 1
locals {
  staff = contains(job.groups, "staff")
}
rule "r" {
  when = local.staff
  grant {}
}
=== wrong
Error: Missing trigger

  on policy.hcl line 5, column 1, in rule "r":
   5: rule "r" {
      ^^^^^^^^

  the rules name job.groups, node.features, node.gpus, node.driver or gpu, which must be looked up: write a trigger block, so that only jobs that ask for MPS pay for that
