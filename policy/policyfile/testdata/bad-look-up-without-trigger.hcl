version = 1
rule "r" {
  when = gpu.sms > 100
  grant {}
}
=== wrong
Error: Missing trigger

  on policy.hcl line 2, column 1, in rule "r":
   2: rule "r" {
      ^^^^^^^^

  the rules name job.groups, node.features, node.gpus, node.driver or gpu, which must be looked up: write a trigger block, so that only jobs that ask for MPS pay for that
