version = 1
trigger {
  option = true
}
locals {
  all    = true
  course = "gpu-course*"
}
rule "course" {
  when = job.reservation == "gpu-course*" || local.course != job.reservation || contains(["a", "chem*"], job.account) || job.qos == "*x"
  deny = "no"
}
rule "models" {
  when = gpu.model == "NVIDIA H200" || contains(["A100", "H200", "h200"], gpu.model) || gpu.model == "h300"
  deny = "no"
}
rule "right" {
  when = gpu.model == "H200" || gpu.model == "NVIDIA RTX PRO 4500" || gpu.product == "NVIDIA H200" || job.comment == "a?" || can(regex("a*", job.user)) || !can(regex("b*", job.user))
  deny = "no"
}
rule "rest" {
  when = local.all
  grant {
    memory = gpu.model == "A30X" ? "16G" : "8G"
  }
}
rule "late" {
  when = job.user == "ada"
  deny = "no"
}
rule "later" {
  when = true
  deny = "no"
}
=== warned
Warning: Never equal

  on policy.hcl line 10, column 29, in rule "course":
  10:   when = job.reservation == "gpu-course*" || local.course != job.reservation || contains(["a", "chem*"], job.account) || job.qos == "*x"
                                  ^^^^^^^^^^^^^

  this compares the whole text, and a * stands for itself: write startswith(job.reservation, "gpu-course")

Warning: Never equal

  on policy.hcl line 10, column 46, in rule "course":
  10:   when = job.reservation == "gpu-course*" || local.course != job.reservation || contains(["a", "chem*"], job.account) || job.qos == "*x"
                                                   ^^^^^^^^^^^^

  this compares the whole text, and a * stands for itself: write startswith(job.reservation, "gpu-course")

Warning: Never equal

  on policy.hcl line 10, column 90, in rule "course":
  10:   when = job.reservation == "gpu-course*" || local.course != job.reservation || contains(["a", "chem*"], job.account) || job.qos == "*x"
                                                                                               ^^^^^^^^^^^^^^

  this compares the whole text, and a * stands for itself: write startswith(job.account, "chem")

Warning: Never equal

  on policy.hcl line 10, column 133, in rule "course":
  10:   when = job.reservation == "gpu-course*" || local.course != job.reservation || contains(["a", "chem*"], job.account) || job.qos == "*x"
                                                                                                                                          ^^^^

  this compares the whole text, and a * stands for itself: write startswith, endswith or can(regex(…))

Warning: Never equal

  on policy.hcl line 14, column 23, in rule "models":
  14:   when = gpu.model == "NVIDIA H200" || contains(["A100", "H200", "h200"], gpu.model) || gpu.model == "h300"
                            ^^^^^^^^^^^^^

  gpu.model of this GPU is "H200", and gpu.product is "NVIDIA H200"

Warning: Never equal

  on policy.hcl line 14, column 49, in rule "models":
  14:   when = gpu.model == "NVIDIA H200" || contains(["A100", "H200", "h200"], gpu.model) || gpu.model == "h300"
                                                      ^^^^^^^^^^^^^^^^^^^^^^^^

  cannot find GPU "A100": say A100-40 or A100-80

Warning: Never equal

  on policy.hcl line 14, column 49, in rule "models":
  14:   when = gpu.model == "NVIDIA H200" || contains(["A100", "H200", "h200"], gpu.model) || gpu.model == "h300"
                                                      ^^^^^^^^^^^^^^^^^^^^^^^^

  gpu.model of this GPU is "H200", and gpu.product is "NVIDIA H200"

Warning: Never equal

  on policy.hcl line 14, column 102, in rule "models":
  14:   when = gpu.model == "NVIDIA H200" || contains(["A100", "H200", "h200"], gpu.model) || gpu.model == "h300"
                                                                                                           ^^^^^^

  cannot find GPU "h300": known are V100, V100-32, T4, A100-40, A100-80, A30, A40, RTX A6000, A10, A2, A16, RTX 3090, L4, L20, L40, L40S, RTX 6000 Ada, RTX 4090, H100 PCIe, H100 NVL, H100 SXM, H20, H200, B200, GB200, B300, RTX 5090, RTX PRO 6000, GH200

Warning: Never equal

  on policy.hcl line 24, column 27, in rule "rest":
  24:     memory = gpu.model == "A30X" ? "16G" : "8G"
                                ^^^^^^

  cannot find GPU "A30X": known are V100, V100-32, T4, A100-40, A100-80, A30, A40, RTX A6000, A10, A2, A16, RTX 3090, L4, L20, L40, L40S, RTX 6000 Ada, RTX 4090, H100 PCIe, H100 NVL, H100 SXM, H20, H200, B200, GB200, B300, RTX 5090, RTX PRO 6000, GH200

Warning: Never tried

  on policy.hcl line 27, column 6, in rule "late":
  27: rule "late" {
           ^^^^^^

  rule "rest" at policy.hcl:21 is for every job, and the first rule that holds decides: move this one before it

Warning: Never tried

  on policy.hcl line 31, column 6, in rule "later":
  31: rule "later" {
           ^^^^^^^

  rule "rest" at policy.hcl:21 is for every job, and the first rule that holds decides: move this one before it
=== job {"HasOption": true}
rule "course": denied: no
