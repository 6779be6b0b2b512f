# SPDX-License-Identifier: Apache-2.0
"""What n equal programs gain on one GPU, beside the figures that a report has of them: the data of docs/packing.md.

  packing.py run PART WINDOW SECONDS [WRAPPER...]   measures each fourth program, from PART (1 to 4) on
  packing.py join REPORT                            adds the recorder's figures to these lines, from a report's JSON

For each program and number of ranks it prints a line for each rank, as the test TestLeaveOneOut reads them:

  pack PROGRAM n=RANKS r=RANK rate STEPS-A-SECOND

Rank 0's line goes on: "gpm SM-ACTIVE OCCUPANCY DRAM GRAPHICS TENSOR at BEGIN END", percentages that GPM counts from the
window's begin to its end, and these times since 1970. -1 is a counter that the GPU lacks. join adds "own SM-ACTIVE DRAM
SM-UTIL USED-MIB CLIENTS SAMPLES" from the samples that lie in the window.

The programs are those of python.py and more, and LAMMPS on three inputs, if CODES has it. Each rank is a run of its
own, with a core of its own. A line "# share SHARE" stands before the trials with a share: 1, 2 and 4 ranks have none, as
in packing-h200.txt, and 8 ranks have overlap:2. No number of ranks begins after SECONDS. PACKING_ONLY is a pattern of
what is measured, such as "lammps_.* [24]".
"""

import ctypes
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import python

GROUPS = (("none", 1), ("none", 2), ("none", 4), ("overlap:2", 8))
CODES = os.path.dirname(os.path.abspath(__file__))


def torch_program(make):
    """A program of PyTorch: make(torch) has nothing on the host, and returns a step in a process."""

    def place():
        import torch

        def begin():
            return make(torch)

        return begin

    place.__name__ = make.__name__
    python.known.append(place)
    return place


def bodies(torch, n):
    x, v = torch.randn(n, 3, device="cuda"), torch.zeros(n, 3, device="cuda")

    def step():
        d = x[None] - x[:, None]
        force = (d / ((d * d).sum(-1, keepdim=True) + 0.01) ** 1.5).sum(1)
        v.add_(force, alpha=1e-4)
        x.add_(v, alpha=1e-4)
        return x[0, 0].item()

    return step


@torch_program
def nbody_2048(torch):
    return bodies(torch, 2048)


@torch_program
def nbody_8192(torch):
    return bodies(torch, 8192)


def layers(torch, batch):
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 6).half().cuda().eval()
    words = torch.randn(batch, 128, 768, device="cuda", dtype=torch.float16)

    @torch.inference_mode()
    def step():
        return net(words)[0, 0, 0].item()

    return step


@torch_program
def transformer_4(torch):
    return layers(torch, 4)


@torch_program
def transformer_32(torch):
    return layers(torch, 32)


@torch_program
def convolution_training(torch):
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    net.cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    images, labels = torch.randn(64, 3, 64, 64, device="cuda"), torch.randint(10, (64,), device="cuda")
    return lambda: python.train(optimizer, torch.nn.functional.cross_entropy(net(images), labels))


def repeated(operate, times, last):
    """A step of several operations on the GPU, of which the host reads the last one's result."""

    def step():
        for _ in range(times):
            operate()
        return last().item()

    return step


@torch_program
def stream_add(torch):
    a = torch.randn(64 << 20, device="cuda")
    return repeated(lambda: a.add_(1.0), 10, lambda: a[0])


@torch_program
def product_4096(torch):
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    b = torch.empty_like(a)
    return repeated(lambda: torch.mm(a, a, out=b), 10, lambda: b[0, 0])


@torch_program
def product_1024(torch):
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
    b = torch.empty_like(a)
    return repeated(lambda: torch.mm(a, a, out=b), 10, lambda: b[0, 0])


@torch_program
def fft_128(torch):
    a = torch.randn(128, 128, 128, device="cuda", dtype=torch.complex64)
    return repeated(lambda: torch.fft.fftn(a), 5, lambda: a[0, 0, 0].real)


@torch_program
def tiny_kernels(torch):
    a = torch.zeros(64, device="cuda")
    return repeated(lambda: a.add_(1.0), 50, lambda: a[0])


@torch_program
def sparse_solver(torch):
    n = 20000
    along = torch.arange(n, device="cuda")
    pairs = ((along, along), (along[:-1], along[1:]), (along[1:], along[:-1]))
    where = torch.cat([torch.stack(pair) for pair in pairs], 1)
    values = torch.cat([torch.full((n,), 4.0, device="cuda"), torch.full((2 * n - 2,), -1.0, device="cuda")])
    matrix, b = torch.sparse_coo_tensor(where, values, (n, n)).to_sparse_csr(), torch.ones(n, device="cuda")

    def step():
        """Ten steps of conjugate gradients."""
        x, r = torch.zeros_like(b), b.clone()
        p, square = r.clone(), r @ r
        for _ in range(10):
            q = matrix @ p
            alpha = square / (p @ q)
            x, r = x + alpha * p, r - alpha * q
            new = r @ r
            p, square = r + new / square * p, new
        return square.item()

    return step


@torch_program
def recurrent(torch):
    net = torch.nn.LSTM(256, 512, 2, batch_first=True).cuda().eval()
    words = torch.randn(32, 64, 256, device="cuda")

    @torch.inference_mode()
    def step():
        return net(words)[0][0, 0, 0].item()

    return step


@torch_program
def sorting(torch):
    a = torch.rand(4 << 20, device="cuda")
    return lambda: torch.sort(a)[0][0].item()


@torch_program
def stencil(torch):
    a = torch.randn(1, 1, 192, 192, 192, device="cuda")
    kernel = torch.ones(1, 1, 3, 3, 3, device="cuda") / 27
    return repeated(lambda: a.copy_(torch.nn.functional.conv3d(a, kernel, padding=1)), 5, lambda: a[0, 0, 0, 0, 0])


@torch_program
def lookup(torch):
    table, rows = torch.randn(1 << 20, 64, device="cuda"), torch.randint(1 << 20, (1 << 18,), device="cuda")
    return repeated(lambda: table[rows], 5, lambda: table[0, 0])


@torch_program
def cholesky(torch):
    a = torch.randn(256, 96, 96, device="cuda")
    a = a @ a.transpose(1, 2) + 96 * torch.eye(96, device="cuda")
    return lambda: torch.linalg.cholesky(a)[0, 0, 0].item()


@torch_program
def random_walks(torch):
    x = torch.zeros(8 << 20, device="cuda")
    return repeated(lambda: x.add_(torch.randn_like(x)), 5, lambda: x[0])


@torch_program
def attention(torch):
    q = torch.randn(4, 16, 1024, 64, device="cuda", dtype=torch.float16)
    return repeated(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q), 5, lambda: q[0, 0, 0, 0])


class Lammps:
    """Separate runs of LAMMPS, which print a line each few steps."""

    def __init__(self, name, every):
        self.name, self.every = name, every

    def measure(self, n, wrapper, window, sampler):
        first = int(os.environ.get("FIRST_CORE") or 0)
        with open(f"{CODES}/in.{self.name}") as source, open(f"run.{self.name}", "w") as script:
            script.write(re.sub(r"(?m)^(thermo(_style|_modify)?|run)\s.*", "", source.read()))
            script.write(f"\nthermo {self.every}\nthermo_modify flush yes\nrun 100000000\n")
        command = [*([*wrapper, f"--slots={n}"] if wrapper else []), f"{CODES}/lmp", "-nonbuf", "-in",
                   f"run.{self.name}", "-sf", "gpu", "-pk", "gpu", "1", "-log", "none"]
        env = dict(os.environ, OMPI_MCA_ess_singleton_isolated="1")
        runs = [subprocess.Popen(["taskset", "-c", str(first + i), *command], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, env=env) for i in range(n)]
        lines = [[] for _ in runs]
        readers = [threading.Thread(target=self.read, args=(r, l)) for r, l in zip(runs, lines)]
        try:
            for reader in readers:
                reader.start()
            until = time.monotonic() + 40
            while not all(len(l) > 1 for l in lines):
                if time.monotonic() > until or any(r.poll() is not None for r in runs):
                    raise EOFError(f"LAMMPS does not compute: {lines}")
                time.sleep(0.05)
            begin = time.monotonic() + python.WARM
            figures = sampler.ask(begin, begin + window)
            rates = []
            for line in lines:
                inside = [(at, step) for at, step in line if begin <= at <= begin + window]
                rates.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
            return rates, figures
        finally:
            for r in runs:
                r.kill()
            for r, reader in zip(runs, readers):
                r.wait()
                reader.join()

    @staticmethod
    def read(run, lines):
        begun = False
        for line in run.stdout:
            words = line.split()
            begun = begun or words[:1] == ["Step"]
            if begun and words and words[0].isdigit():
                lines.append((time.monotonic(), int(words[0])))


class Sampler:
    """A process that reads GPM's counters. It is one of its own, because no process that forks may use the driver."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "sample"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def tell(self, begin, end):
        self.process.stdin.write(f"{begin:.6f} {end:.6f}\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip() or "gpm -1 -1 -1 -1 -1"

    def ask(self, begin, end):
        self.tell(begin, end)
        return self.answer()


class Metric(ctypes.Structure):  # nvmlGpmMetric_t
    _fields_ = [("id", ctypes.c_uint), ("result", ctypes.c_int), ("value", ctypes.c_double),
                ("names", ctypes.c_char_p * 3)]


class Metrics(ctypes.Structure):  # nvmlGpmMetricsGet_t, with room for what a newer driver may write
    _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint), ("samples", ctypes.c_void_p * 2),
                ("all", Metric * 512)]


COUNTERS = (2, 3, 10, 1, 5)  # of nvml.h: SM active, occupancy, DRAM, graphics, any tensor


def sample():
    """Answers each line "BEGIN END", of the monotonic clock, with GPM's figures of that time."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device = ctypes.c_void_p()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]

    def call(name, *args):
        if result := getattr(nvml, name)(*args):
            sys.exit(f"packing.py: {name} fails with {result}")

    call("nvmlInit_v2")
    if visible.startswith("GPU-"):
        call("nvmlDeviceGetHandleByUUID", visible.encode(), ctypes.byref(device))
    else:
        call("nvmlDeviceGetHandleByIndex_v2", int(visible or 0), ctypes.byref(device))
    samples = [ctypes.c_void_p(), ctypes.c_void_p()]
    for s in samples:
        call("nvmlGpmSampleAlloc", ctypes.byref(s))
    for line in sys.stdin:
        times = []
        for moment, s in zip(map(float, line.split()), samples):
            time.sleep(max(moment - time.monotonic(), 0))
            call("nvmlGpmSampleGet", device, s)
            times.append(time.time())
        m = Metrics(version=1, count=len(COUNTERS), samples=(ctypes.c_void_p * 2)(*(s.value for s in samples)))
        for i, counter in enumerate(COUNTERS):
            m.all[i].id = counter
        call("nvmlGpmMetricsGet", ctypes.byref(m))
        values = ["-1" if x.result else "%.1f" % x.value for x in m.all[:len(COUNTERS)]]
        print("gpm", *values, "at %.3f %.3f" % tuple(times), flush=True)


def show(name, n, rates, figures):
    for rank in reversed(range(n)):
        print(f"pack {name} n={n} r={rank} rate {rates[rank]:.6g}" + (f" {figures}" if rank == 0 else ""), flush=True)


def working(names, host, wrapper):
    """The programs that can be run. One that fails in a group would end it for all programs."""
    first, works = int(os.environ.get("FIRST_CORE") or 0), []
    signal.alarm(240)
    for name in names:
        p = python.Process(first, 1, "ours", [name], host and {name: host[name]}, wrapper)
        try:
            p.answer()
            works.append(name)
        except (EOFError, OSError) as error:
            python.say(f"{name} is skipped: {error!r}")
        finally:
            p.end()
    signal.alarm(0)
    return works


def group(n, names, host, wrapper, sampler):
    """Runs programs one after the other in n processes (see python.py), each for as long as the window."""
    first, processes = int(os.environ.get("FIRST_CORE") or 0), []
    signal.alarm(240)
    try:
        for i in range(n):
            processes.append(python.Process(first + i, n, "ours", names, host, wrapper))
        for name in names:
            for p in processes:
                p.answer()
            begin = time.monotonic() + 0.01
            for p in processes:
                os.write(p.tell, b"%.6f\n" % begin)
            sampler.tell(begin + python.WARM, begin + python.WARM + python.WINDOW)
            rates = [float(p.answer()) for p in processes]
            show(name, n, rates, sampler.answer())
    except (EOFError, OSError) as error:
        python.say(f"{n} processes: {error!r}")
    finally:
        signal.alarm(0)
        for p in processes:
            p.end()


def measure(part, window, seconds, *wrapper):
    began = time.monotonic()
    python.WINDOW = float(window)
    codes = [Lammps("lj", 100), Lammps("eam", 50), Lammps("rhodo", 5)] if os.path.exists(f"{CODES}/lmp") else []
    only = re.compile(os.environ.get("PACKING_ONLY") or ".*")

    def wanted(name, n):
        return only.fullmatch(f"{name} {n}")

    python.known[:] = [make for make in python.known[int(part) - 1::4] if any(wanted(make.__name__, n) for _, n in GROUPS)]
    codes = codes[int(part) - 1::4]
    sys.addaudithook(python.watch)
    host, dirty = python.prepare()
    python.gc.freeze()
    signal.signal(signal.SIGALRM, python.too_late)
    uncapped = [*wrapper, "--share=none"] if wrapper else []
    host = {name: host[name] for name in working(list(host), host, uncapped)}
    names, dirty = list(host), working(dirty, None, uncapped)
    sampler = Sampler()
    for share, n in GROUPS:
        lack = python.lacking(n)
        if not lack and time.monotonic() > began + float(seconds):
            lack = "there is no time left"
        if lack:
            python.say(f"{n} ranks are skipped: {lack}")
            continue
        print("# share", share, flush=True)
        shared = [*wrapper, f"--share={share}"] if wrapper else []
        for some, made in (names, host), (dirty, None):
            if some := [name for name in some if wanted(name, n)]:
                group(n, some, made and {name: made[name] for name in some}, shared, sampler)
        for code in (code for code in codes if wanted(f"lammps_{code.name}", n)):
            try:
                show(f"lammps_{code.name}", n, *code.measure(n, shared, python.WINDOW, sampler))
            except (EOFError, IndexError, ZeroDivisionError) as error:
                python.say(f"{code.name}, {n} runs: {error!r}")
        python.say(f"{n} ranks: {time.monotonic() - began:.0f} s since the begin")
    sampler.process.stdin.close()
    sampler.process.wait()


def seconds_of(text):
    """The seconds since 1970 of a time of the report, as 2026-11-28T15:04:05.123456789Z or with an offset."""
    day, fraction, zone = re.fullmatch(r"([^.Z+]*?)(\.\d+)?(Z|[+-]\d\d:\d\d)", text).groups()
    moment = datetime.datetime.fromisoformat(day + zone.replace("Z", "+00:00"))
    return moment.timestamp() + float(fraction or 0)


def join(report):
    with open(report) as source:
        report = json.load(source)
    spans, before = [], seconds_of(report["begin"])
    for s in report["gpus"][0]["samples"]:
        at = seconds_of(s["at"])
        spans.append((before, at, s))
        before = at
    for line in sys.stdin:
        line = line.rstrip("\n")
        if moments := re.search(r" at (\S+) (\S+)$", line):
            begin, end = map(float, moments.groups())
            inside = [(to - since, s) for since, to, s in spans if since >= begin and to <= end]
            lasted = sum(weight for weight, _ in inside)

            def mean(key):
                return sum(weight * s[key] for weight, s in inside) / lasted if lasted else -1

            def most(key):
                return max((s[key] for _, s in inside), default=-1)

            line += (f" own {mean('sm_active'):.1f} {mean('dram'):.1f} {mean('sm_util'):.1f} {most('used_mib'):.0f} "
                     f"{most('clients')} {len(inside)}")
        print(line)


def run(command, *words):
    if command == "member":  # a process of python.py that imports its programs itself
        return python.run(command, *words)
    return {"run": measure, "join": join, "sample": sample}[command](*words)


if __name__ == "__main__":
    run(*sys.argv[1:])
