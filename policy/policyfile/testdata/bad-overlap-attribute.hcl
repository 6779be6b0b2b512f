version = 1
rule "r" {
  when = true
  grant {
    overlap = "2"
  }
}
=== wrong
Error: Unsupported argument

  on policy.hcl line 5, column 5, in rule "r":
   5:     overlap = "2"
          ^^^^^^^

  overlap is a form of share: write share = "overlap:F".
