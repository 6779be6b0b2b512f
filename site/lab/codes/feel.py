# SPDX-License-Identifier: Apache-2.0
"""What programs on a GPU feel while a neighbour ends badly (feel.sh). All roles write into the folder of now.

  feel.py serve NAME           a token of GPT-2 at a time, as an inference server
  feel.py reduce NAME RANK N   one of N ranks: a product on the GPU, then an allreduce of 1 MiB by gloo on the host
  feel.py lines NAME           reads LAMMPS' output from stdin: a line for each ten steps
  feel.py train NAME           training steps of ResNet-18, as a neighbour that lives
  feel.py victim NAME MIB S    takes MIB of memory, keeps S seconds of work in flight, and ends by SIGKILL
  feel.py next NAME MIB        takes MIB of memory, computes once, ends well
  feel.py table HEAD NAME      prints what each NAME felt

serve, reduce, lines and train write "END SECONDS" into NAME.steps for each step: the clock at its end, and how long it
took. They end when the file stop exists. victim and next write a line into events: the clock and what happened.
"""

import glob
import os
import signal
import statistics
import sys
import time

import python


def stopped():
    return os.path.exists("stop")


def steps(name, step, over=stopped):
    """Runs step until it is over, and writes what each took."""
    with open(name + ".steps", "w") as out:
        open(name + ".ready", "w").close()
        last = time.time()
        while not over():
            step()
            now = time.time()
            out.write("%.6f %.6f\n" % (now, now - last))
            last = now


def event(what):
    with open("events", "a") as out:
        out.write("%.6f %s\n" % (time.time(), what))


def warm(name, step, times):
    """Runs a program of python.py. The first steps do not count."""
    import torch

    torch.set_num_threads(1)
    for _ in range(times):
        step()
    steps(name, step)


def serve(name):
    warm(name, python.gpt2_decode(128)(), 300)  # PyTorch allocates memory for each length once


def train(name):
    warm(name, python.resnet18()(), 10)


def reduce(name, rank, ranks):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath(name + ".meet"), rank=int(rank),
                            world_size=int(ranks))
    a = torch.randn(1024, 1024, device="cuda") * 0.01
    more = torch.ones(1)

    def step():
        host = (a @ a)[:256].cpu()  # 1 MiB
        dist.all_reduce(host)
        more[0] = not stopped()  # the ranks end together
        dist.all_reduce(more, dist.ReduceOp.MIN)

    for _ in range(20):
        step()
    steps("%s-%s" % (name, rank), step, lambda: more[0] == 0)


def lines(name):
    source = sys.stdin
    for line in source:
        if line.split()[:1] == ["Step"]:
            break
    steps(name, lambda: source.readline() or sys.exit())


def big(mib):
    """Memory, and a function that queues a product of some milliseconds."""
    import torch

    kept = torch.empty(int(mib) << 20, dtype=torch.uint8, device="cuda")
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.half) * 0.01
    b = torch.empty_like(a)
    torch.mm(a, a, out=b)
    torch.cuda.synchronize()
    return kept, lambda: torch.mm(a, a, out=b), torch.cuda.synchronize


def victim(name, mib, seconds):
    _, launch, wait = big(mib)
    began = time.time()
    for _ in range(20):
        launch()
    wait()
    each = (time.time() - began) / 20
    for _ in range(int(float(seconds) / each)):
        launch()
    event(name)
    os.kill(os.getpid(), signal.SIGKILL)


def next_one(name, mib):
    _, launch, wait = big(mib)
    launch()
    wait()
    event(name)


# The phases around an end, in seconds after it. The work in flight is 2 s, and a pause ends some 0.5 s after it.
PHASES = {"before": (-2.5, -0.5), "during": (-0.1, 4), "after": (5, 7)}


def table(head, *names):
    """Prints a line "HEAD NAME.KIND.PHASE N P50 P99 MAX", N steps in milliseconds, for each kind of end and phase, and
    a line for the whole time in which the program ran."""
    ends = {}
    for line in open("events") if os.path.exists("events") else ():
        clock, what = line.split()
        ends.setdefault(what, []).append(float(clock))
    for name in names:
        every = [tuple(map(float, line.split())) for file in glob.glob(name + "*.steps") for line in open(file)
                 if len(line.split()) == 2]
        show("%s %s.all" % (head, name), [took for _, took in every])
        for kind in [k for k in sorted(ends) if not k.startswith("next")]:
            for phase, (begin, end) in PHASES.items():
                show("%s %s.%s.%s" % (head, name, kind, phase),
                     [took for at, took in every for e in ends[kind] if e + begin <= at <= e + end])
            alive = sum(any(at > e + 5 for at, _ in every) for e in ends[kind])
            print("%s %s.%s.alive %d of %d" % (head, name, kind, alive, len(ends[kind])))
    for kind in [k for k in ends if k.startswith("next")]:
        waits = [min(n - e for e in ends[kind[len("next-"):]] if e <= n) for n in ends[kind]]
        print("%s %s %d %.2f to %.2f s after the end" % (head, kind, len(waits), min(waits), max(waits)))


def show(head, took):
    if took:
        took.sort()
        at = lambda q: 1000 * took[min(len(took) - 1, int(q * len(took)))]  # noqa: E731
        print("%s %d %.2f %.2f %.2f" % (head, len(took), 1000 * statistics.median(took), at(0.99), 1000 * took[-1]))


if __name__ == "__main__":
    role, arguments = sys.argv[1], sys.argv[2:]
    {"serve": serve, "reduce": reduce, "lines": lines, "train": train, "victim": victim, "next": next_one,
     "table": table}[role](*arguments)
