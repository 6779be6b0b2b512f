version = 1
locals {
  staff = ["ada", "bob"
  large = 3
}
rule "a" {
  when = contains(local.staff, job.user)
  grant { ceiling = 999 }
}
=== wrong
Error: Missing item separator

  on policy.hcl line 4, column 3:
   4:   large = 3
        ^^^^^

  Expected a comma to mark the beginning of the next item.
