version = 1
trigger {
  option = true
}
rule "startswith" {
  when = startswith(job.user, "a_")
  grant {}
}
rule "endswith" {
  when = endswith(job.user, "_b")
  grant {}
}
rule "strcontains" {
  when = strcontains(job.user, "mid")
  grant {}
}
rule "regex" {
  when = can(regex("^c[0-9]+$", job.user))
  grant {}
}
rule "upper" {
  when = upper(job.user) == "D"
  grant {}
}
rule "lower" {
  when = lower(job.user) == "e"
  grant {}
}
rule "try" {
  when = try(job.gpus[1], 99) == 5
  grant {}
}
rule "for" {
  when = length([for g in job.gpus : g if g > 6]) == 2
  grant {}
}
rule "for-index" {
  when = contains([for i, g in job.gpus : g - i], 9)
  grant {}
}
rule "coalesce" {
  when = coalesce(job.reservation, job.partition, "x") == "resv"
  grant {}
}
rule "join" {
  when = join("+", job.requested) == "a+b"
  grant {}
}
rule "length" {
  when = length(job.comment) == 3
  grant {}
}
rule "template" {
  when = "${job.account}-${job.nodes}" == "acc-2"
  grant {}
}
rule "min" {
  when = min(job.uid, 5) == 4
  grant {}
}
rule "max" {
  when = max(job.gid, 5) == 6
  grant {}
}
rule "index" {
  when = try(regex("[0-9]+", job.comment), "") == "42"
  grant {}
}
rule "choice" {
  when = (job.array > 0 ? job.restart : 9) == 1
  grant {}
}
rule "not" {
  when = !(job.id > 5) && job.id >= 5
  grant {}
}
rule "node" {
  when = node.name == "n7"
  grant {}
}
=== job {"HasOption": true, "ID": 0, "UID": 9, "User": "a_x"}
rule "startswith": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "User": "x_b"}
rule "endswith": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "User": "x.mid.y"}
rule "strcontains": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "User": "c12"}
rule "regex": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "User": "d"}
rule "upper": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "User": "E"}
rule "lower": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "GPUs": [4, 5]}
rule "try": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "GPUs": [7, 1, 8]}
rule "for": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "GPUs": [9, 9, 11]}
rule "for-index": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Reservation": "resv"}
rule "coalesce": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Partition": "resv"}
rule "coalesce": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Requested": ["a", "b"]}
rule "join": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Comment": "äöü"}
rule "length": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Account": "acc", "Nodes": 2}
rule "template": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "GID": 6}
rule "max": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Comment": "x42y"}
rule "index": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Array": 3, "Restart": 1}
rule "choice": granted
=== job {"HasOption": true, "UID": 9, "ID": 5}
rule "not": granted
=== job {"HasOption": true, "ID": 0, "UID": 9, "Node": "n7"}
rule "node": granted
