version = 1
rule "r" {
  when = try(1 / (3 - 3), 0) == 1
  grant {}
}
=== job {}
not asked
