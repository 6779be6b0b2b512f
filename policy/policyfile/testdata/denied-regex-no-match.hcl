version = 1
rule "r" {
  when = regex("^chem", job.account) == "chem"
  grant {}
}
=== job {"Account": "chem-a"}
rule "r": granted
=== job {"Account": "phys"}
rule "r": denied: this site's policy cannot decide: policy.hcl:3:10: Error in function call: Call to function "regex" failed: no part of the string matches: ask can(regex(…)), or write try(regex(…), ""): tell the site's admins
