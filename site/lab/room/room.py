#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks for the trial of a GPU with little room (site/lab/room). They use PyTorch or, with KIND "driver", libcuda.

  room.py rank KIND NAME OPTION=VALUE...   one rank, see below
  room.py serve KIND                       imports PyTorch once and forks ranks: each line of stdin is a JSON object
                                           with the keys "env", a map, and "args", the arguments of a rank

A rank imports PyTorch and waits until the file go=FILE exists. Then it makes its context, allocates mib=MIB and prints
"NAME ready". Its role decides what follows:

  role=neighbour  computes, waits for each kernel, and prints its work until a call fails
  role=victim     keeps seconds=S of work queued until the file end=FILE exists, then ends as ending=HOW says; the
                  endings are those of victim.py, and "outside" waits for a signal
  role=greedy     when the file end=FILE exists, queues seconds=S of work, then allocates until that fails; the
                  exception ends the process

Each line of output is "NAME WHAT pid=PID ...".
"""

import ctypes
import json
import os
import resource
import signal
import sys
import time

import victim

MIB = 1 << 20
WAIT = 120  # seconds, for every wait


class Products(victim.Products):
    """Matrix products of PyTorch, one a piece."""

    def allocate(self, mib):
        return self.torch.empty(mib * MIB, device=self.device, dtype=self.torch.uint8)

    def launch_one(self):
        self.torch.mm(self.a, self.b, out=self.c)


class Driver(victim.Kernels):
    """Kernels of a known time, by libcuda alone. This also runs on a simulated GPU."""

    def allocate(self, mib):
        memory = ctypes.c_uint64()
        victim.check(self.cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib * MIB)), "cuMemAlloc")
        return memory

    def launch_one(self):
        self.add()


def work_of(kind, role):
    if kind == "driver":
        return Driver(5 if role == "neighbour" else 20)
    return Products(1024 if role == "neighbour" else 12288, 1)


def wait_for(path):
    limit = time.monotonic() + WAIT
    while path and not os.path.exists(path):
        if time.monotonic() > limit:
            raise RuntimeError("%s does not come" % path)
        time.sleep(0.002)


class Rank:
    """One rank, from its start to its end."""

    def __init__(self, kind, name, *options):
        self.kind, self.name = kind, name
        self.options = dict(option.split("=", 1) for option in options)
        self.role = self.options["role"]
        self.kept = []

    def report(self, what):
        victim.report("%s %s pid=%d clock=%.6f" % (self.name, what, os.getpid(), time.time()))

    def run(self):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            if self.kind == "torch":
                import torch  # noqa: F401
            self.report("loaded")
            wait_for(self.options.get("go"))
            self.work = work_of(self.kind, self.role)
            self.work.open()
            self.work.launch_one()
            self.work.wait()
            mib = int(self.options.get("mib", 0))
            if mib:
                self.kept.append(self.work.allocate(mib))
            self.piece = self.piece_seconds()
        except Exception as problem:
            self.fail(problem)
        self.report("ready piece=%.6f" % self.piece)
        {"neighbour": self.neighbour, "victim": self.victim, "greedy": self.greedy}[self.role]()

    def fail(self, problem):
        self.report("err=%s" % "_".join(str(problem).split())[:200])
        os._exit(3)

    def piece_seconds(self):
        times = []
        for _ in range(3):
            began = time.monotonic()
            self.work.launch_one()
            self.work.wait()
            times.append(time.monotonic() - began)
        return max(min(times), 1e-5)

    def neighbour(self):
        kernels, reported = 0, 0.0
        try:
            while True:
                self.work.launch_one()
                self.work.wait()
                kernels += 1
                if time.monotonic() > reported + 0.05:
                    reported = time.monotonic()
                    self.report("works kernels=%d" % kernels)
        except Exception as problem:
            self.fail(problem)

    def queue(self, seconds):
        """Queues work without waiting, and returns its time as far as it is known."""
        count = max(1, int(seconds / self.piece))
        for _ in range(count):
            self.work.launch_one()
        return count * self.piece

    def victim(self):
        seconds, ending = float(self.options["seconds"]), self.options["ending"]
        try:
            wait_for(self.options.get("fill"))
            flies = self.queue(seconds)
        except Exception as problem:
            self.fail(problem)
        self.report("flies inflight=%.3f" % flies)
        if ending == "outside":
            time.sleep(WAIT)
            os._exit(4)
        self.end(ending)

    def end(self, ending):
        v = victim.Victim("", 0, "%s:%s:0" % (self.kind, ending), "")
        v.finish(self.work)

    def greedy(self):
        try:
            wait_for(self.options.get("end"))
            flies = self.queue(float(self.options["seconds"]))
        except Exception as problem:
            self.fail(problem)
        self.report("flies inflight=%.3f" % flies)
        try:
            while True:
                self.kept.append(self.work.allocate(1024))
        finally:
            self.report("full")


def serve(kind):
    if kind == "torch":
        import torch  # noqa: F401
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    victim.report("server serves pid=%d" % os.getpid())
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.update(order["env"])
            Rank(kind, *order["args"]).run()
            os._exit(4)  # not reached, because every role ends the process


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        Rank(*sys.argv[2:]).run()
