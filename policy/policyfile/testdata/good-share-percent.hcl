version = 1
trigger {
  option = true
}
defaults {
  share = "overlap:3"
}
rule "courses" {
  when = job.user == "ada"
  grant { share = "25%" }
}
rule "pairs" {
  when  = job.user == "bob"
  allow = ["share"]
  grant { share = length(job.gpus) > 1 ? "33.30pct" : "even" }
}
rule "twice" {
  when = job.user == "eve"
  grant {
    share = "overlap:2"
  }
}
rule "overlap" {
  when = true
  grant { share = "overlap:1.5" }
}
=== job {"HasOption": true, "User": "ada"}
rule "courses": granted share=25%
=== job {"HasOption": true, "User": "bob", "GPUs": [0]}
rule "pairs": granted share=even
=== job {"HasOption": true, "User": "bob", "GPUs": [0, 1]}
rule "pairs": granted share=33.3%
=== job {"HasOption": true, "User": "bob", "GPUs": [0, 1], "Option": "share=20%"}
rule "pairs": granted share=20%
=== job {"HasOption": true, "User": "bob", "GPUs": [0, 1], "Option": "share=40%"}
rule "pairs": denied: cannot take share=40%: the rule gives 33.3%, and an option can only narrow that
=== job {"HasOption": true, "User": "bob", "GPUs": [0, 1], "Option": "share=even"}
rule "pairs": granted share=even
=== job {"HasOption": true, "User": "bob", "GPUs": [0, 1], "Option": "share=none"}
rule "pairs": denied: cannot take share=none: the rule gives 33.3%, and an option can only narrow that
=== job {"HasOption": true, "User": "eve"}
rule "twice": granted
=== job {"HasOption": true}
rule "overlap": granted share=overlap:1.5
