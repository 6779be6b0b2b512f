#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that share one GPU by gres/mps: what they compute, and what one job's end does to the other.

  trial.py run ROOT BIN CLIENT RESULTS KIND [PATTERN]   runs the trials whose names match, and adds a line of JSON for
                                                        each to RESULTS/shared.jsonl
  trial.py rank KIND WORK FOLDER NAME                   is a rank: computes from FOLDER/go until FOLDER/stop and prints
                                                        what it has done

The production prolog, guard, wrapper and epilog of BIN run below ROOT, without Slurm, as root. The jobs are those of two
users. The compute mode stays as it is. KIND is torch, or driver for ranks that use libcuda alone, as on a simulated GPU.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import victim

SECONDS = 4.0
USERS = {"hpc1": 2001, "hpc2": 2002}


def rank(kind, work, folder, name):
    """Computes until it is told to stop. A rank that fails prints why and exits with 1."""
    try:
        step = WORKS[work]() if kind == "torch" else kernels(work)
        step()
        print("warm", flush=True)
        until(os.path.join(folder, "go"))
        count, began = 0, time.time()
        while not os.path.exists(os.path.join(folder, "stop")):
            step()
            count += 1
        print(json.dumps({"rank": name, "steps": count, "seconds": time.time() - began}), flush=True)
    except Exception as e:  # a rank's neighbour has harmed it
        print("fails: " + str(e).splitlines()[0], flush=True)
        sys.exit(1)


def until(path):
    while not os.path.exists(path):
        time.sleep(0.002)


def kernels(work):
    """Kernels of 5 ms by libcuda, one or a queue of half a second."""
    client = victim.Kernels(5)
    client.open()

    def step():
        for _ in range(100 if work == "queue" else 1):
            client.add()
        client.wait()

    return step


def transformer():
    """Inference of a small transformer, batch 4, as one CUDA graph."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda().half().eval()
    x = torch.randn(4, 128, 512, device="cuda", dtype=torch.float16)
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(x)

    def step():
        graph.replay()
        torch.cuda.synchronize()

    return step


def queue():
    """Matrix products of 5 ms, queued for half a second: work in flight when the rank is killed."""
    import torch

    a = torch.randn(12288, 12288, device="cuda", dtype=torch.float16)
    b = torch.empty_like(a)

    def step():
        for _ in range(100):
            torch.mm(a, a, out=b)
        torch.cuda.synchronize()

    return step


WORKS = {"transformer": transformer, "queue": queue}


class Trial:
    """A node below a root folder, with one GPU."""

    def __init__(self, root, folder, client, results, kind):
        self.root, self.bin, self.client, self.results, self.kind = root, folder, client, results, kind
        self.dir = tempfile.mkdtemp(prefix="shared")
        os.chmod(self.dir, 0o755)
        for path in (__file__, victim.__file__):
            shutil.copy(path, os.path.join(self.dir, os.path.basename(path)))
        self.libraries = os.environ.get("LD_LIBRARY_PATH", "")
        # In a container the numbers need not begin with 0. A simulated node's do.
        minors = sorted(int(name[6:]) for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)) or [0]
        self.write("gres.conf", "Name=gpu File=/dev/nvidia%d\nName=mps Count=100\n" % minors[0])
        self.write("slurm.conf", "NodeName=n1 Gres=gpu:1,mps:100\n")
        for name, uid in USERS.items():
            self.ensure_user(name, uid)
        self.python = self.find_python(USERS["hpc1"])
        self.jobs, self.open = 0, []

    def write(self, name, text):
        with open(os.path.join(self.dir, name), "w") as file:
            file.write(text)

    @staticmethod
    def ensure_user(name, uid):
        with open("/etc/passwd") as file:
            if re.search("^%s:" % name, file.read(), re.M):
                return
        for path, line in (("/etc/group", "%s:x:%d:" % (name, uid)), ("/etc/passwd", "%s:x:%d:%d::/tmp:/bin/sh" % (name, uid, uid))):
            with open(path, "a") as file:
                file.write(line + "\n")

    def find_python(self, uid):
        """Returns the first python3 on PATH that a user can run and that has what the ranks need."""
        module = {"torch": "torch", "driver": "ctypes"}[self.kind]
        test = "import importlib.util as u, sys; sys.exit(u.find_spec('%s') is None)" % module
        for folder in os.environ["PATH"].split(":"):
            python = os.path.join(folder, "python3")
            try:
                if subprocess.run([python, "-c", test], cwd="/", user=uid, env={"PATH": "/usr/bin:/bin"}, stderr=subprocess.DEVNULL).returncode == 0:
                    return python
            except OSError:
                continue
        raise RuntimeError("no python3 with %s on PATH that uid %d can run" % (module, uid))

    def policy(self, **attributes):
        lines = "".join('    %s = %s\n' % (k, json.dumps(v)) for k, v in attributes.items())
        with open(os.path.join(self.root, "etc/slurm-mps/policy.hcl"), "w") as file:
            file.write('version = 1\nrule "mps" {\n  when = true\n  grant {\n    compute_mode = "unchanged"\n%s  }\n}\n' % lines)

    def hook(self, program, job):
        env = {
            "SLURM_SCRIPT_CONTEXT": program + "_slurmd", "SLURMD_NODENAME": "n1", "SLURM_CLUSTER_NAME": "lab",
            "SLURM_CONF": os.path.join(self.dir, "slurm.conf"), "SLURM_JOB_ID": str(job.id), "SLURM_JOB_UID": str(job.uid),
            "SLURM_JOB_GID": str(job.uid), "SLURM_JOB_USER": job.user, "SLURM_JOB_PARTITION": "main", "SLURM_JOB_CONSTRAINTS": "mps",
            "SLURM_JOB_RESTART_COUNT": "0", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NTASKS": "1", "SLURM_JOB_GPUS": "0",
            "CUDA_VISIBLE_DEVICES": "0",
        }
        if job.percent:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(job.percent)
        began = time.time()
        done = subprocess.run([os.path.join(self.bin, program), "--root", self.root], env=env, cwd="/",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        if done.returncode:
            raise RuntimeError("%s of job %d ends with %d: %s" % (program, job.id, done.returncode, done.stdout.decode()))
        return time.time() - began

    def job(self, user, percent):
        self.jobs += 1
        job = Job(self, self.jobs, user, percent)
        self.open.append(job)
        return job

    def end(self):
        """Ends the jobs that a failed trial has left."""
        for job in self.open:
            job.kill()
            job.close()

    def record(self, name, **figures):
        line = json.dumps({"trial": name, **figures})
        print(line, flush=True)
        with open(os.path.join(self.results, "shared.jsonl"), "a") as file:
            file.write(line + "\n")

    def lease(self, job):
        with open(os.path.join(self.root, "run/slurm-mps/leases/%d.json" % job)) as file:
            return json.load(file)

    def logged(self, job, words):
        """Returns the guard's lines about a job with some words."""
        with open(os.path.join(self.root, "var/log/slurm-mps/slurm-mps.log")) as file:
            lines = [json.loads(x) for x in file if words in x]
        return [x for x in lines if x.get("job") == job and x.get("program") == "guard"]

    def left(self):
        """Returns what the epilogs have left."""
        state, found = os.path.join(self.root, "run/slurm-mps"), []
        for folder in ("leases", "claims", "tickets", "jobs", "guards"):
            path = os.path.join(state, folder)
            found += [folder + "/" + name for name in (os.listdir(path) if os.path.isdir(path) else [])]
        return found


class Sampler(threading.Thread):
    """Reads which processes the driver samples, ten times a second, and the GPU's memory."""

    class Sample(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("at", ctypes.c_ulonglong)] + [(n, ctypes.c_uint) for n in ("sm", "mem", "enc", "dec")]

    def __init__(self):
        super().__init__(daemon=True)
        self.nvml, self.gpu, self.seen, self.over = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), [], False
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.gpu)):
            raise RuntimeError("NVML does not start")

    def total(self):
        memory = (ctypes.c_ulonglong * 3)()
        if self.nvml.nvmlDeviceGetMemoryInfo(self.gpu, memory):
            raise RuntimeError("NVML does not tell the memory")
        return memory[0] >> 20

    def run(self):
        last = int(time.time() * 1e6)
        while not self.over:
            samples, n = (self.Sample * 512)(), ctypes.c_uint(512)
            if self.nvml.nvmlDeviceGetProcessUtilization(self.gpu, samples, ctypes.byref(n), ctypes.c_ulonglong(last)) == 0:
                new = [s for s in samples[:n.value] if s.at > last and s.sm > 0]
                self.seen += [(s.at / 1e6, s.pid) for s in new]
                last = max([last] + [s.at for s in new])
            time.sleep(0.1)


class Job:
    """A job of a user with a part of the GPU, between its prolog and its epilog."""

    def __init__(self, trial, number, user, percent):
        self.trial, self.id, self.user, self.uid, self.percent = trial, number, user, USERS[user], percent
        self.ranks, self.folder = [], os.path.join(trial.dir, "job%d" % number)
        os.mkdir(self.folder)
        self.prolog = trial.hook("prolog", self)
        with open(os.path.join(trial.root, "run/slurm-mps/tickets/%d.json" % number)) as file:
            self.ticket = json.load(file)
        if self.ticket.get("refusal_reason"):
            raise RuntimeError("job %d is refused: %s" % (number, self.ticket["refusal_reason"]))

    def wrapper(self):
        return [os.path.join(self.trial.bin, "mpirun-wrap"), "--root", self.trial.root]

    def path(self):
        return os.environ["PATH"]

    def start(self, n, *program):
        """Starts n ranks as srun does."""
        gtids = ",".join(str(i) for i in range(n))
        for i in range(n):
            env = {
                "PATH": self.path(), "HOME": "/tmp", "LD_LIBRARY_PATH": self.trial.libraries, "SLURM_JOB_ID": str(self.id),
                "SLURM_STEP_ID": "0", "SLURM_LOCALID": str(i), "SLURM_GTIDS": gtids, "SLURM_NODEID": "0", "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
            }
            line = self.wrapper() + list(program)
            out = open(os.path.join(self.folder, "out%d" % len(self.ranks)), "w+")

            def become():
                os.setsid()
                os.setgroups([self.uid])
                os.setgid(self.uid)
                os.setuid(self.uid)

            self.ranks.append((subprocess.Popen(line, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=become), out))

    def compute(self, work, n):
        self.start(n, self.trial.python, os.path.join(self.trial.dir, "trial.py"), "rank", self.trial.kind, work, self.folder, str(self.id))

    def client(self, n, *words):
        """Starts n ranks of cuda-client, and waits until they compute."""
        self.start(n, self.trial.client, "spin", "-blocks", "16", "-for", "900", *(str(w) for w in words))
        self.warm(word=" ready ")
        return self.ranks[-n:]

    def warm(self, limit=60, word="warm"):
        deadline = time.time() + limit
        for process, out in self.ranks:
            while word not in self.text(out) and process.returncode is None:
                if time.time() > deadline or process.poll() is not None:
                    raise RuntimeError("a rank of job %d does not start (%s): %s" % (self.id, process.returncode, self.text(out)))
                time.sleep(0.01)

    @staticmethod
    def text(out):
        with open(out.name) as file:
            return file.read()

    def tell(self, word):
        open(os.path.join(self.folder, word), "w").close()

    def rates(self):
        """Returns the steps a second of each rank that has ended well, and the number of the others."""
        rates, lost = [], 0
        for process, out in self.ranks:
            try:
                process.wait(30)
                line = json.loads(self.text(out).strip().splitlines()[-1])
                rates.append(line["steps"] / line["seconds"])
            except (subprocess.TimeoutExpired, ValueError, IndexError, TypeError):
                lost += 1
        return rates, lost

    def living(self):
        return sum(process.poll() is None for process, _ in self.ranks)

    def kill(self):
        """Ends all ranks as Slurm cancels a job."""
        for process, _ in self.ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process, _ in self.ranks:
            process.wait(30)

    def close(self):
        if self in self.trial.open:
            self.trial.open.remove(self)
        return self.trial.hook("epilog", self)


def together(t, name, users, ranks, percent, work="transformer", **policy):
    """Jobs compute at the same time for SECONDS."""
    t.policy(**policy)
    jobs = [t.job(user, percent) for user in users]
    for job in jobs:
        job.compute(work, ranks)
    for job in jobs:
        job.warm()
    for job in jobs:
        job.tell("go")
    time.sleep(SECONDS)
    for job in jobs:
        job.tell("stop")
    results = [job.rates() for job in jobs]
    prologs, epilogs = [job.prolog for job in jobs], [job.close() for job in jobs]
    t.record(name, users=users, ranks=ranks, percent=percent, policy=policy, rates=[sum(r) for r, _ in results],
             lost=[lost for _, lost in results], prolog=prologs, epilog=epilogs, left=t.left())


def harm(t, name, users, how, **policy):
    """One job is cancelled in flight, or one of its ranks writes to a wrong address, and the other job's ranks go on."""
    t.policy(**policy)
    victim, other = [t.job(user, 50) for user in users]
    other.compute("transformer", 2)
    victim.compute("queue", 1)
    for job in (victim, other):
        job.warm()
        job.tell("go")
    time.sleep(0.5)
    if how == "cancelled":
        victim.kill()
        victim.close()
    else:
        victim.start(1, t.client, "fault")
        victim.ranks[-1][0].wait(30)
    time.sleep(2)
    lived = other.living()
    other.tell("stop")
    _, lost = other.rates()
    if how != "cancelled":
        victim.kill()
        victim.close()
    other.close()
    t.record(name, users=users, how=how, policy=policy, neighbours=2, lived=min(lived, 2 - lost), left=t.left())


class Own(Job):
    """Ranks of a user without an admin, by mpirun-wrap --own."""

    def __init__(self, trial, number, user):
        self.trial, self.id, self.user, self.uid = trial, number, user, USERS[user]
        self.ranks, self.folder = [], os.path.join(trial.dir, "job%d" % number)
        os.mkdir(self.folder)

    def wrapper(self):
        line = [os.path.join(self.trial.bin, "mpirun-wrap"), "--own"]
        return line + (["--root", self.trial.root] if self.trial.kind == "driver" else [])

    def path(self):
        """Finds the simulated control program, if the GPU is simulated."""
        if self.trial.kind != "driver":
            return os.environ["PATH"]
        return os.path.join(os.path.dirname(self.trial.libraries.split(":")[0]), "bin") + ":" + os.environ["PATH"]

    def close(self):
        self.trial.open.remove(self)


def pid_of(rank):
    return rank[0].pid


def parent(pid):
    with open("/proc/%d/stat" % pid) as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


def stranger(t, name, trials):
    """A job of another user has 0.4 of the GPU's memory and computes all the time. A rank with 1 s in flight is killed
    beside two neighbours. In the last third of the trials, its successor needs what it holds, and the guard pauses the
    neighbours itself. In the others, this script stops them for a while, so that the job's own work ends."""
    t.policy(share_gpu="turns", hold="30s", pause="12s")
    sampler = Sampler()
    sampler.start()
    other, job = t.job("hpc2", 50), t.job("hpc1", 50)
    large = int(0.4 * sampler.total())
    busy = other.client(1, "-ms", 5, "-queue", 10, "-mib", large)[0]
    daemons = {d["proc"]["pid"] for d in t.lease(job.id)["daemons"]}
    neighbours = []
    for trial in range(trials):
        needed = trial >= trials - trials // 3
        if any(n[0].poll() is not None for n in neighbours) or not neighbours:
            neighbours = job.client(2, "-ms", 5, "-mib", 1000)
        victim = job.client(1, "-ms", 5, "-queue", 200, "-replay", "-mib", large if needed else 1000)[0]
        time.sleep(1)
        before, died = len(t.logged(job.id, "paused the")), time.time()
        victim[0].kill()
        victim[0].wait()
        if not needed:
            for n in neighbours:
                os.kill(pid_of(n), signal.SIGSTOP)
        gone, closed = [], None
        while not gone and time.time() - died < 45:
            time.sleep(0.05)
            gone = [x for x in t.logged(job.id, "let go") if x["pid"] == pid_of(victim)]
        if gone:
            closed = gone[0]["held_ms"] / 1000
        for n in neighbours:
            if n[0].poll() is None:
                os.kill(pid_of(n), signal.SIGCONT)
        servers = {p for _, p in sampler.seen if os.path.exists("/proc/%d" % p) and parent(p) in daemons}
        own = [at - died for at, p in sampler.seen if p in servers and at > died and (closed is None or at - died < closed)]
        time.sleep(1.5)
        pauses = t.logged(job.id, "paused the")[before:]
        t.record(name, n=trial, needed=needed, pauses=len(pauses), paused_ms=[round(p["paused_ms"]) for p in pauses],
                 idle=[p["idle"] for p in pauses], reason=gone[0]["reason"] if gone else "held", held_ms=round(1000 * closed) if gone else None,
                 own_work_s=round(max(own, default=0), 2), close_after_s=round(closed - max(own, default=0), 2) if gone else None,
                 neighbours=2, lived=sum(n[0].poll() is None for n in neighbours), stranger_lives=busy[0].poll() is None)
    sampler.over = True
    sampler.join()
    for one in (job, other):
        one.kill()
        one.close()
    t.record(name, left=t.left())


def unreadable(t, name):
    """With --own, a program of another user that can be executed and not be read is killed with 1.5 s in flight."""
    program = os.path.join(t.dir, "unreadable")
    shutil.copy(t.client, program)
    os.chmod(program, 0o711)
    t.jobs += 1
    job = Own(t, t.jobs, "hpc1")
    t.open.append(job)
    job.client(2, "-ms", 5)
    neighbours = list(job.ranks)
    job.start(1, program, "spin", "-ms", "5", "-queue", "300", "-blocks", "16", "-for", "900")
    job.warm(word=" ready ")
    time.sleep(1)
    victim = job.ranks[-1]
    os.kill(pid_of(victim), signal.SIGKILL)
    victim[0].wait()
    time.sleep(4)
    lived = sum(n[0].poll() is None for n in neighbours)
    job.kill()
    lines = sorted({x for _, out in job.ranks for x in job.text(out).splitlines() if x.startswith(("slurm-mps:", "mpirun-wrap:"))})
    job.close()
    t.record(name, neighbours=2, lived=lived, lines=lines)


def trials(t):
    one, two = ["hpc1", "hpc1"], ["hpc1", "hpc2"]
    yield "alone", lambda n: together(t, n, ["hpc1"], 4, 50)
    yield "turns-one-user", lambda n: together(t, n, one, 4, 50, share_gpu="turns")
    yield "user", lambda n: together(t, n, one, 4, 50, share_gpu="user")
    yield "turns-two-users", lambda n: together(t, n, two, 4, 50, share_gpu="turns")
    for i in range(3):
        yield "cancelled-turns-%d" % i, lambda n: harm(t, n, two, "cancelled", share_gpu="turns")
        yield "cancelled-user-%d" % i, lambda n: harm(t, n, one, "cancelled", share_gpu="user")
        yield "fault-turns-%d" % i, lambda n: harm(t, n, two, "fault", share_gpu="turns")
    yield "stranger", lambda n: stranger(t, n, 10)
    yield "unreadable-own", lambda n: unreadable(t, n)
    yield "fault-user", lambda n: harm(t, n, one, "fault", share_gpu="user")


def main(root, folder, client, results, kind, pattern=""):
    t, failed = Trial(root, folder, client, results, kind), 0
    for name, run in trials(t):
        if not re.search(pattern, name):
            continue
        try:
            run(name)
        except Exception as e:
            failed = 1
            t.record(name, error=str(e)[:2000])
            t.end()
    log = os.path.join(t.root, "var/log/slurm-mps/slurm-mps.log")
    if os.path.exists(log):  # --own writes none
        shutil.copy(log, os.path.join(results, "shared-log.jsonl"))
    shutil.rmtree(t.dir)
    sys.exit(failed)


if __name__ == "__main__":
    {"rank": rank, "run": main}[sys.argv[1]](*sys.argv[2:])
