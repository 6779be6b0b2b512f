#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of a GPU that end with work in flight, and a neighbour, for site-check -trials.

  victim.py run FOLDER SPEC    a client: SPEC decides what it computes and how it ends
  victim.py neighbour                 multiplies matrices, waits for each product, reports its work until it fails

SPEC is KIND:ENDING:SECONDS. SECONDS is the amount of work in flight. A client prints "warm" when it can compute. When
FOLDER/fill exists, the client queues its work, prints "ready" with the work in flight, and keeps this amount in flight.
When FOLDER/end exists, the client prints "ends", and ends as ENDING says. With "outside" or "loading" it waits for a
signal.
"""

import collections
import ctypes
import os
import resource
import signal
import sys
import threading
import time

MIB = 1 << 20


def report(text):
    """Writes a line in one write, because other processes write to the same output."""
    os.write(1, (text + "\n").encode())


class Torch:
    """A queue of PyTorch work. A subclass prepares the work in prepare(), and launches one piece in launch()."""

    def open(self):
        import torch

        self.torch = torch
        self.device = torch.device("cuda", 0)
        torch.zeros(1, device=self.device)
        self.prepare()

    def square(self, n):
        return self.torch.randn(n, n, device=self.device, dtype=self.torch.float16) * 0.01

    def add(self):
        self.launch()
        event = self.torch.cuda.Event()
        event.record()
        return event

    def done(self, event):
        return event.query()

    def wait(self):
        self.torch.cuda.synchronize()

    def allocate_too_much(self):
        self.torch.empty(1 << 50, device=self.device, dtype=self.torch.uint8)


class Products(Torch):
    """Matrix products. A piece has the given number of products."""

    def __init__(self, n, times):
        self.n, self.times = n, times

    def prepare(self):
        self.a, self.b, self.c = self.square(self.n), self.square(self.n), self.square(self.n)

    def launch(self):
        for _ in range(self.times):
            self.torch.mm(self.a, self.b, out=self.c)


class Graph(Products):
    """Replays of a CUDA graph of products."""

    def prepare(self):
        super().prepare()
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            super().launch()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            super().launch()

    def launch(self):
        self.graph.replay()


class Convolution(Torch):
    """Training steps of a small convolutional network."""

    def prepare(self):
        nn = self.torch.nn
        self.net = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(128, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
        ).to(self.device)
        self.optimizer = self.torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.images = self.torch.randn(128, 3, 96, 96, device=self.device)

    def launch(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.net(self.images).square().mean().backward()
        self.optimizer.step()


class Copies(Torch):
    """Copies between pinned memory and the GPU."""

    def __init__(self, to_device):
        self.to_device = to_device

    def prepare(self):
        self.host = self.torch.empty(128 * MIB, dtype=self.torch.uint8, pin_memory=True)
        self.there = self.torch.empty(128 * MIB, dtype=self.torch.uint8, device=self.device)

    def launch(self):
        if self.to_device:
            self.there.copy_(self.host, non_blocking=True)
        else:
            self.host.copy_(self.there, non_blocking=True)


class Churn(Products):
    """Products, while a thread allocates and frees device memory all the time."""

    def prepare(self):
        super().prepare()
        self.thread = threading.Thread(target=self.churn, daemon=True)
        self.thread.start()

    def churn(self):
        self.torch.zeros(1, device=self.device)  # now the thread has the context
        cuda = ctypes.CDLL("libcuda.so.1")
        while True:
            memory = ctypes.c_uint64()
            check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 * MIB)), "cuMemAlloc")
            check(cuda.cuMemFree_v2(memory), "cuMemFree")


class Managed(Torch):
    """Writes to a small amount of managed memory."""

    def prepare(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.memory = ctypes.c_uint64()
        check(self.cuda.cuMemAllocManaged(ctypes.byref(self.memory), ctypes.c_size_t(512 * MIB), 1), "cuMemAllocManaged")

    def launch(self):
        for _ in range(20):
            check(self.cuda.cuMemsetD32Async(self.memory, 7, ctypes.c_size_t(128 * MIB), None), "cuMemsetD32Async")


class CuPy:
    """Matrix products of CuPy."""

    def open(self):
        import cupy

        self.cupy = cupy
        self.a = cupy.full((8192, 8192), 0.01, dtype=cupy.float16)
        self.b = cupy.full((8192, 8192), 0.01, dtype=cupy.float16)
        self.c = cupy.zeros((8192, 8192), dtype=cupy.float16)

    def add(self):
        for _ in range(4):
            self.cupy.dot(self.a, self.b, out=self.c)
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record()
        return event

    def done(self, event):
        return event.done

    def wait(self):
        self.cupy.cuda.Device().synchronize()

    def allocate_too_much(self):
        self.cupy.empty(1 << 50, dtype=self.cupy.uint8)


class Jax:
    """Matrix products of JAX. JAX queues at most 32 computations, so each computation has many products."""

    def open(self):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy as jnp

        self.jnp = jnp

        def products(a, b):
            for _ in range(24):
                a = a @ b
            return a  # the whole matrix, because XLA computes only the part that is returned

        self.a = jnp.full((8192, 8192), 0.01, dtype=jnp.float16)
        self.b = jnp.full((8192, 8192), 0.01, dtype=jnp.float16)
        self.products = jax.jit(products)
        self.last = None

    def add(self):
        self.last = self.products(self.a, self.b)
        return self.last

    def done(self, result):
        return result.is_ready()

    def wait(self):
        if self.last is not None:
            self.last.block_until_ready()

    def allocate_too_much(self):
        self.jnp.zeros((1 << 20, 1 << 20), dtype=self.jnp.float32).block_until_ready()


# The kernel of cuda-client. It runs for a given time on the GPU's own clock.
SPIN = b"""\
.version 6.4
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 ns, .param .u64 out)
{
	.reg .pred %p<3>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd0, [ns];
	ld.param.u64 %rd1, [out];
	mov.u64 %rd2, %globaltimer;
AGAIN:
	mov.u64 %rd3, %globaltimer;
	sub.u64 %rd4, %rd3, %rd2;
	setp.lt.u64 %p1, %rd4, %rd0;
	@%p1 bra AGAIN;
	setp.eq.u64 %p2, %rd1, 0;
	@%p2 bra DONE;
	st.global.u64 [%rd1], %rd0;
DONE:
	ret;
}
"""


def check(error, call):
    if error:
        raise RuntimeError("%s: CUDA error %d" % (call, error))


class Kernels:
    """Kernels with a known run time, launched with the driver's library alone. The clock shows when they are done."""

    def __init__(self, ms):
        self.seconds = ms / 1e3
        self.end = 0.0

    def open(self):
        self.cuda = cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel = ctypes.c_void_p()
        check(cuda.cuInit(0), "cuInit")
        check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
        check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        check(cuda.cuModuleLoadData(ctypes.byref(module), SPIN), "cuModuleLoadData")
        check(cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"spin"), "cuModuleGetFunction")

    def launch(self, seconds):
        ns, out = ctypes.c_uint64(int(seconds * 1e9)), ctypes.c_uint64(0)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(ns), ctypes.addressof(out))
        check(self.cuda.cuLaunchKernel(self.kernel, 16, 1, 1, 1, 1, 1, 0, None, arguments, None), "cuLaunchKernel")

    def add(self):
        self.launch(self.seconds)
        self.end = max(self.end, time.monotonic()) + self.seconds
        return self.end

    def done(self, end):
        return time.monotonic() >= end

    def wait(self):
        check(self.cuda.cuCtxSynchronize(), "cuCtxSynchronize")

    def allocate_too_much(self):
        memory = ctypes.c_uint64()
        check(self.cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 50)), "cuMemAlloc")


KINDS = {
    "matmul": lambda: Products(12288, 1),
    "matmul3": lambda: Products(12288, 1),
    "graph": lambda: Graph(4096, 10),
    "small": lambda: Products(1024, 50),
    "conv": Convolution,
    "h2d": lambda: Copies(True),
    "d2h": lambda: Copies(False),
    "churn": lambda: Churn(8192, 2),
    "managed": Managed,
    "cupy": CuPy,
    "jax": Jax,
    "spins": lambda: Kernels(5),
}


def piece_seconds(work):
    """Returns the time of a piece."""
    if isinstance(work, Kernels):
        work.launch(0.001)
        work.wait()
        return work.seconds
    work.add()
    work.wait()
    times = []
    for _ in range(3):
        began = time.monotonic()
        work.add()
        work.wait()
        times.append(time.monotonic() - began)
    return max(min(times), 1e-5)


class Victim:
    """One client, from its start to its end."""

    def __init__(self, folder, spec):
        self.folder = folder
        self.kind, self.ending, seconds = spec.split(":")
        self.seconds = float(seconds)
        self.name = "pid=%d" % os.getpid()
        self.flying = collections.deque()

    def report(self, text):
        report(self.name + " " + text)

    def there(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    def run(self):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.report("started")
        try:
            work = KINDS[self.kind]()
            work.open()
            piece = piece_seconds(work)
            self.report("warm piece=%.6f" % piece)
            self.keep_busy(work, piece)
        except Exception as problem:  # an error of the GPU, before the ending has begun
            self.report("err=%s" % " ".join(str(problem).split())[:300])
            os._exit(3)
        self.finish(work)

    def in_flight(self, work, piece):
        while self.flying and work.done(self.flying[0]):
            self.flying.popleft()
        return len(self.flying) * piece

    def keep_busy(self, work, piece):
        """Queues work and keeps self.seconds of it in flight, until FOLDER/end exists."""
        limit = time.monotonic() + 120
        while not self.there("fill") and self.ending != "loading":
            if time.monotonic() > limit:
                raise RuntimeError("no one asked for work")
            time.sleep(0.001)
        began, reported = time.monotonic(), False
        while not self.there("end") or self.ending in ("outside", "loading"):
            now = time.monotonic()
            if now > limit:
                raise RuntimeError("no one ended this client")
            flying = self.in_flight(work, piece)
            if not reported and (flying >= 0.9 * self.seconds or now > began + 1):
                reported = True
                self.report("ready inflight=%.3f" % flying)
            for _ in range(64):  # after 64 pieces, check again what is done
                if len(self.flying) * piece >= self.seconds:
                    break
                self.flying.append(work.add())
            time.sleep(0.0005)
        self.report("ends inflight=%.3f clock=%.6f" % (self.in_flight(work, piece), time.time()))

    def finish(self, work):
        """Ends in the way of self.ending."""
        if self.ending == "segv":
            ctypes.string_at(0)
        elif self.ending == "abort":
            os.abort()
        elif self.ending == "kill-self":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.ending == "exception":
            raise RuntimeError("the exception that this client was asked for")
        elif self.ending == "exit0":
            sys.exit(0)
        elif self.ending == "_exit0":
            os._exit(0)
        elif self.ending == "exit1":
            sys.exit(1)
        elif self.ending == "alloc":
            try:
                work.allocate_too_much()
            except Exception:
                sys.exit(1)
            self.report("err=the allocation did not fail")
            os._exit(3)
        elif self.ending == "oom":
            memory = []
            while len(memory) < 256:
                memory.append(b"x" * (16 * MIB))
            self.report("err=no limit of memory ended this client")
            os._exit(3)
        else:
            self.report("err=unknown ending %s" % self.ending)
            os._exit(3)


def run(folder, spec):
    Victim(folder, spec).run()


def neighbour():
    import torch

    kernels = 0
    try:
        a = torch.randn(1024, 1024, device="cuda", dtype=torch.float16) * 0.01
        reported = 0.0
        while True:
            torch.mm(a, a)
            torch.cuda.synchronize()
            kernels += 1
            if time.monotonic() > reported + 0.05:
                reported = time.monotonic()
                report("pid=%d at work kernels=%d" % (os.getpid(), kernels))
    except Exception as problem:
        report("pid=%d err=%s after %d" % (os.getpid(), " ".join(str(problem).split())[:200], kernels))
        os._exit(1)


if __name__ == "__main__":
    {"run": run, "neighbour": neighbour}[sys.argv[1]](*sys.argv[2:])
