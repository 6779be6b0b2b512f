version = 1
trigger {
  option = true
}
rule "r" {
  when = true
  grant {}
}
=== job {"HasOption": true, "Option": "share=even"}
rule "r": denied: cannot take share=even: this site's policy lets this job set no option
