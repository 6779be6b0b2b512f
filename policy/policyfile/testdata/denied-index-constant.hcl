version = 1
rule "r" {
  when = ["a", "b"][5] == job.user
  grant {}
}
=== job {"User": "a"}
rule "r": denied: this site's policy cannot decide: policy.hcl:3:20: Invalid index: there is no such element: write try(…, DEFAULT): tell the site's admins
