version = 1
rule "r" {
  when = request.account == "chem" && job.gpus <= 2
  limit {}
}
=== wrong
Error: Unknown variable

  on policy.hcl line 3, column 10, in rule "r":
   3:   when = request.account == "chem" && job.gpus <= 2
               ^^^^^^^

  There is no variable named "request".

Error: Wrong type

  on policy.hcl line 3, column 39, in rule "r":
   3:   when = request.account == "chem" && job.gpus <= 2
                                            ^^^^^^^^

  <= takes a number, and this is a list: length(…) counts a list

Error: Unsupported block type

  on policy.hcl line 4, column 3, in rule "r":
   4:   limit {}
        ^^^^^

  Blocks of type "limit" are not expected here. A rule has grant.
