version = 1
trigger {
  option = true
}
rule "none" {
  when = job.user == "ada"
  grant { hold = "0s" }
}
rule "longest" {
  when = job.user == "bob"
  grant { hold = "10m" }
}
rule "default" {
  when = true
  grant {}
}
=== job {"HasOption": true, "User": "ada"}
rule "none": granted hold=0s
=== job {"HasOption": true, "User": "bob"}
rule "longest": granted hold=10m0s
=== job {"HasOption": true, "User": "eve"}
rule "default": granted
