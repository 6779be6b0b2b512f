# SPDX-License-Identifier: Apache-2.0
"""python.py TURN MODE RANKS [WRAPPER]: programs on one GPU, for each number of processes in RANKS ("1 8 16").

It prints a line for each program and number: TURN MODE PROGRAM PROCESSES STEPS-A-SECOND, of all processes. Each step
ends with a value that the host reads, as a training loop that logs its loss or a server that answers. Weights and data
are random: only the time counts.

The imports and the weights on the host take longer than the measurement, so they happen once, before the fork: the
first process never uses the GPU. If the import of a program starts CUDA, which no fork outlives, the processes of that
program import it themselves, and the others are forked as before. A process has a core of its own and the environment that WRAPPER gives it. All run a
program at the same time: they make it, do a step, and wait for each other. Then they compute from one moment on. The
steps that end in WINDOW seconds count, after WARM seconds. No process stops before the window's end, so each has its
neighbours for as long as it is measured.
"""
import gc
import os
import signal
import subprocess
import sys
import time
import traceback

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Two checks that start CUDA: is_available() of PyTorch, and the one of versions when JAX finds its plugin for CUDA.
# CUDA_VISIBLE_DEVICES="" would not do: PyTorch and the driver keep what they have found once, also after a fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
WARM, WINDOW = 0.5, 1.0  # seconds
STEPS = 4  # that count at least: a window is longer if a step takes longer
PATIENCE = 100  # seconds for all programs of one number of processes
MEMORY = 1800  # MiB of the GPU that a process may take
known = []


def program(make):
    """A program: its imports and what it has on the host. What it returns runs in a process, and returns a step."""
    known.append(make)
    return make


def train(optimizer, loss):
    """A step of an optimizer of PyTorch. It returns the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@program
def resnet18():
    """A training step of ResNet-18, 16 images of 224 x 224, in bfloat16."""
    import torch
    import torchvision

    net = torchvision.models.resnet18()

    def place():
        net.cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        images = torch.randn(16, 3, 224, 224, device="cuda")
        labels = torch.randint(1000, (16,), device="cuda")

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(net(images), labels)
            return train(optimizer, loss)

        return step

    return place


@program
def gpt2_decode(context=512):
    """A token of GPT-2 (124 million parameters, float16), one sequence, with its cache of keys and values."""
    import torch
    import transformers

    net = transformers.GPT2LMHeadModel(transformers.GPT2Config()).half().eval()

    def place():
        net.cuda()
        state = {"tokens": torch.zeros(1, 1, dtype=torch.long, device="cuda"), "cache": None, "length": 0}

        @torch.inference_mode()
        def step():
            if state["length"] == context:
                state.update(cache=None, length=0)
            out = net(state["tokens"], past_key_values=state["cache"], use_cache=True)
            state.update(tokens=out.logits[:, -1:].argmax(-1), cache=out.past_key_values, length=state["length"] + 1)
            return state["tokens"].item()

        return step

    return place


@program
def gnn():
    """A training step of a graph network (torch-geometric, three GCN layers of 128), 2,000 nodes and 20,000 edges."""
    import torch
    from torch_geometric.nn import GCN

    net = GCN(64, 128, 3, 16)

    def place():
        net.cuda()
        optimizer = torch.optim.Adam(net.parameters())
        nodes, edges = torch.randn(2000, 64, device="cuda"), torch.randint(2000, (2, 20000), device="cuda")
        labels = torch.randint(16, (2000,), device="cuda")

        def step():
            return train(optimizer, torch.nn.functional.cross_entropy(net(nodes, edges), labels))

        return step

    return place


@program
def gaussian_process():
    """A training step of an exact Gaussian process (gpytorch), 1,500 points in 8 dimensions."""
    import gpytorch
    import torch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, points, values, likelihood):
            super().__init__(points, values, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=8))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def place():
        points, values = torch.randn(1500, 8, device="cuda"), torch.randn(1500, device="cuda")
        likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
        model = Model(points, values, likelihood).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        likely = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

        def step():
            return train(optimizer, -likely(model(points), values))

        return step

    return place


@program
def diffusion():
    """A step of a diffusion sampler: a network of eight convolutions of 128 channels, 8 images of 64 x 64, float16."""
    import torch

    layers = [torch.nn.Conv2d(3, 128, 3, padding=1)]
    for _ in range(6):
        layers += [torch.nn.GroupNorm(8, 128), torch.nn.SiLU(), torch.nn.Conv2d(128, 128, 3, padding=1)]
    net = torch.nn.Sequential(*layers, torch.nn.Conv2d(128, 3, 3, padding=1)).half().eval()

    def place():
        net.cuda()
        state = {"x": torch.randn(8, 3, 64, 64, device="cuda", dtype=torch.float16)}

        @torch.inference_mode()
        def step():
            noise = net(state["x"])
            state["x"] = (state["x"] - 0.01 * noise).clamp(-3, 3) + 0.01 * torch.randn_like(noise)
            return state["x"][0, 0, 0, 0].item()

        return step

    return place


@program
def jax_mlp():
    """A training step of a network of four layers of 1,024 in JAX, batch 256, jitted."""
    import jax
    import jax.numpy as jnp

    def loss(weights, x, y):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean((h - y) ** 2)

    @jax.jit
    def update(weights, x, y):
        value, slopes = jax.value_and_grad(loss)(weights, x, y)
        return value, [w - 0.01 * s for w, s in zip(weights, slopes)]

    def place():
        keys = jax.random.split(jax.random.PRNGKey(0), 6)
        state = {"weights": [jax.random.normal(k, (1024, 1024)) * 0.03 for k in keys[:4]]}
        x, y = jax.random.normal(keys[4], (256, 1024)), jax.random.normal(keys[5], (256, 1024))

        def step():
            value, state["weights"] = update(state["weights"], x, y)
            return float(value)

        return step

    return place


class Process:
    """A forked process. It hears a line for each program, and answers."""

    def __init__(self, core, n, mode, names, host, wrapper):
        heard, self.tell = os.pipe()
        self.hear, told = os.pipe()
        self.error = f"error.{core}"
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.tell)
            os.close(self.hear)
            self.become(core, n, mode, names, host, wrapper, heard, told)
        os.close(heard)
        os.close(told)
        self.answers = os.fdopen(self.hear)

    def become(self, core, n, mode, names, host, wrapper, heard, told):
        try:
            out = os.open(self.error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.sched_setaffinity(0, [core])
            if mode == "bare":
                os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(100 // n)
            holder = placed([*wrapper, f"--slots={n}"]) if wrapper else None
            if host is None:
                for fd in (heard, told) + ((holder.stdin.fileno(),) if holder else ()):
                    os.set_inheritable(fd, True)
                os.execv(sys.executable, [sys.executable, sys.argv[0], "member", str(heard), str(told), *names])
            member(host, heard, told)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    def answer(self):
        line = self.answers.readline()
        if not line:
            raise EOFError("a process has ended")
        return line

    def end(self):
        """Ends the process if it still runs, and prints the last lines of one that failed."""
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.answers.close()
        os.close(self.tell)
        if status not in (0, signal.SIGKILL):
            with open(self.error) as lines:
                say(f"{self.error}, status {status}: " + "".join(lines.readlines()[-3:]))


def placed(wrapper):
    """Takes the environment that the wrapper gives to a program. That program lives as long as this process, so the
    wrapper's slot is this process's."""
    holder = subprocess.Popen([*wrapper, "sh", "-c", "env -0 && printf '\\0' && exec cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    text = b""
    while not text.endswith(b"\0\0"):
        more = os.read(holder.stdout.fileno(), 1 << 16)
        if not more:
            sys.exit(f"python.py: {wrapper[0]} runs no program")
        text += more
    os.environ.clear()
    os.environ.update(line.split("=", 1) for line in os.fsdecode(text).rstrip("\0").split("\0"))
    return holder


def member(host, heard, told):
    """Runs the programs, each from the moment that it hears."""
    import torch

    torch.set_num_threads(1)
    # Neither file is closed before the end: the first process ends this one when it hears no more.
    moments, out = os.fdopen(heard), os.fdopen(told, "w", buffering=1)
    for name in list(host):
        step = host.pop(name)()
        step()
        print("made", file=out)
        begin = moments.readline()
        print(rate(step, float(begin) + WARM), file=out)
        del step
        gc.collect()
        torch.cuda.empty_cache()


def rate(step, begin):
    """Steps a second, from the first end of a step in the window to the last."""
    ends = []
    while len(ends) < STEPS or ends[-1] < begin + WINDOW:
        step()
        now = time.monotonic()
        if now >= begin:
            ends.append(now)
    inside = [end for end in ends if end <= begin + WINDOW]
    if len(inside) >= STEPS:
        ends = inside
    return (len(ends) - 1) / (ends[-1] - ends[0])


def group(n, head, names, host, wrapper):
    """Runs programs in n processes: forks of this one, or if host is None, processes that import all themselves."""
    first = int(os.environ.get("FIRST_CORE") or 0)
    began, measured, done, processes = time.monotonic(), 0, 0, []
    title = f"{n} processes {'that import' if host is None else 'of'} {', '.join(names)}"
    signal.alarm(PATIENCE)
    try:
        for i in range(n):
            processes.append(Process(first + i, n, head[1], names, host, wrapper))
        for name in names:
            for p in processes:
                p.answer()
            begin = time.monotonic() + 0.01
            for p in processes:
                os.write(p.tell, b"%.6f\n" % begin)
            print(*head, name, n, "%.6g" % sum([float(p.answer()) for p in processes]), flush=True)
            measured += time.monotonic() - begin
            done += 1
        for p in processes:
            p.answers.read()  # to its end
        say(f"{title}: {time.monotonic() - began:.1f} s, of them {measured:.1f} s measured")
    except (EOFError, OSError) as error:
        for name in names[done:]:
            print(*head, name, n, "failed", flush=True)
        say(f"{title}: {error!r} after {time.monotonic() - began:.1f} s")
    finally:
        signal.alarm(0)
        for p in processes:
            p.end()


def too_late(*_):
    raise TimeoutError(f"not all programs have ended after {PATIENCE} s")


def say(text):
    print("python.py:", text, flush=True)


def lacking(n):
    """Says what the machine lacks for n processes, or nothing."""
    cores = int(os.environ.get("FIRST_CORE") or 0) + n
    if cores - 1 not in os.sched_getaffinity(0):
        return f"there is no core {cores - 1}: each process has one of its own"
    memory = min(map(int, subprocess.check_output(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], text=True).split()))
    if n * MEMORY > memory:
        return f"the GPU has {memory} MiB, and each process takes up to {MEMORY} MiB"
    return ""


def prepare():
    """Imports all, and makes what the programs have on the host. It returns this, and the names of the programs whose
    imports start CUDA.

    A fork tries each program, and goes on in the place of its parent. A fork that has started CUDA ends, and its
    parent goes on without that program.
    """
    host, dirty = {}, []
    for make in known:
        name = make.__name__
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            if status == DIRTY << 8:
                dirty.append(name)
            elif status != MISSING << 8:
                os._exit(os.waitstatus_to_exitcode(status) & 255)
            continue
        code = DIRTY
        try:
            host[name] = make()
        except ImportError as error:
            say(f"{name} is skipped: {error}")
            code = MISSING
        if cuda_runs():
            say(f"the imports of {name} have started CUDA, {found()}")
            os._exit(code)
    return host, dirty


DIRTY, MISSING = 77, 78  # the status of a fork that has started CUDA: if the program can be run, and if not
imports = []  # the last one, and the first that saw CUDA run


def watch(event, args):
    """Remembers the last import before CUDA ran."""
    if event == "import" and len(imports) < 2:
        imports[:] = [*imports, args[0]] if imports and cuda_runs() else [args[0]]


def found():
    return f"after the import of {imports[0]}" + (f" and before that of {imports[1]}" if imports[1:] else "")


def cuda_runs():
    """Says if this process uses CUDA. A fork of it cannot."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/nvidia-uvm"):
                return True
        except FileNotFoundError:  # that of the folder itself
            pass
    return False


def main(turn, mode, ranks, *wrapper):
    began = time.monotonic()
    sys.addaudithook(watch)
    host, dirty = prepare()
    names = list(host)
    gc.freeze()  # so that a process collects only what it made
    say(f"imports and weights: {time.monotonic() - began:.1f} s, {len(os.listdir('/proc/self/task'))} threads")
    signal.signal(signal.SIGALRM, too_late)
    for n in map(int, ranks.split()):
        lack = lacking(n)
        if lack:
            say(f"{n} processes are skipped: {lack}")
            continue
        for some, made in (names, host), (dirty, None):
            if some:
                group(n, (turn, mode), some, made, wrapper)


def run(command, *words):
    """Is the first process, or one that imports its programs itself."""
    if command != "member":
        return main(command, *words)
    heard, told, *names = words
    member({make.__name__: make() for make in known if make.__name__ in names}, int(heard), int(told))


if __name__ == "__main__":
    run(*sys.argv[1:])
