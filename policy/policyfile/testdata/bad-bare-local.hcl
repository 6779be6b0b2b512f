version = 1
rule "r" {
  when = local == 1
  grant {}
}
=== wrong
Error: Incomplete name

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = local == 1
               ^^^^^

  local has attributes: write local.NAME
