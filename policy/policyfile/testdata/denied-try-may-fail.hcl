version = 1
rule "r" {
  when = try(job.gpus[0], job.gpus[1]) == 1
  grant {}
}
=== job {"GPUs": [1]}
rule "r": granted
=== job {"GPUs": []}
rule "r": denied: this site's policy cannot decide: policy.hcl:3:10: Error in function call: Call to function "try" failed: no expression succeeded: - Invalid index (at policy.hcl:3,22-25) The given key does not identify an element in this collection value: the collection has no elements. - Invalid index (at policy.hcl:3,35-38) The given key does not identify an element in this collection value. At least one expression must produce a successful result: tell the site's admins
