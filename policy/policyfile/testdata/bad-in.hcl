version = 1
rule "r" {
  when = "students" in job.groups
  grant {}
}
=== wrong
Error: Missing newline after argument

  on policy.hcl line 3, column 21, in rule "r":
   3:   when = "students" in job.groups
                          ^^

  An argument definition must end with a newline. Whether a list has a value is written contains(LIST, VALUE).
