version = 1
rule "r" {
  when = job.user == "anna"
  grant {}
}
=== job {"User": "anna"}
rule "r": granted
=== job {"User": "bob"}
not asked
=== job {"User": "anna", "HasOption": true, "Option": "share=even"}
rule "r": denied: cannot take share=even: this site's policy lets this job set no option
=== job {"User": "anna", "Comment": "mps:share=even"}
rule "r": granted
