version = 1
locals {
  large = true
}
rule "r" {
  when = local.lagre
  grant {}
}
=== wrong
Error: Unsupported attribute

  on policy.hcl line 6, column 15, in rule "r":
   6:   when = local.lagre
                    ^^^^^^

  there is no local named "lagre". Did you mean "large"?
