version = 1
variable "staff" {
  default = ["ada"]
}
rule "r" {
  when = contains(var.staff, job.user) && account == "chem"
  grant {}
}
=== wrong
Error: Unsupported block type

  on policy.hcl line 2, column 1, in variable "staff":
   2: variable "staff" {
      ^^^^^^^^

  Blocks of type "variable" are not expected here. Write locals { NAME = VALUE } and local.NAME.

Error: Unknown variable

  on policy.hcl line 6, column 19, in rule "r":
   6:   when = contains(var.staff, job.user) && account == "chem"
                        ^^^

  There is no variable named "var". Write local.NAME.

Error: Unknown variable

  on policy.hcl line 6, column 43, in rule "r":
   6:   when = contains(var.staff, job.user) && account == "chem"
                                                ^^^^^^^

  There is no variable named "account". Did you mean job.account?
