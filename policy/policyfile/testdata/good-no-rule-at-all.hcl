version = 1
=== job {"HasOption": true, "Requested": ["mps"]}
not asked
