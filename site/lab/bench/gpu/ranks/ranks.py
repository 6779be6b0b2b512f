# SPDX-License-Identifier: Apache-2.0
"""ranks.py FOLDER PROGRAM[,PROGRAM...] WARM WINDOWS SECONDS: measures PyTorch programs as ranks.c measures its programs.

transformer: inference of an encoder of 6 layers, 512 wide, on 4 sequences of 128, float16, as a CUDA graph. Servers of
    models run inference in this way. The rank waits for each answer.
cg: conjugate gradients on the Laplacian of a 512 x 512 grid (sparse CSR). Python launches each operation. The rank
    waits for the GPU after every 10 iterations.

Each rank has its own CPU if there are enough CPUs. The ranks synchronise with files in FOLDER. Only steps of the same
job use FOLDER. Rank 0 prints the lines.
"""
import json
import os
import sys
import time


def started_by(mpirun, srun):
    return int(os.environ[mpirun if mpirun in os.environ else srun])


began = time.monotonic()
RANK, SIZE = started_by("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"), started_by("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
FOLDER, PROGRAMS = os.path.join(sys.argv[1], os.environ.get("SLURM_STEP_ID", "0")), sys.argv[2].split(",")
WARM, WINDOWS, SECONDS = float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
CPUS = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CPUS[RANK * len(CPUS) // SIZE if SIZE < len(CPUS) else RANK % len(CPUS)]})
os.makedirs(FOLDER, exist_ok=True)
import torch

TIMEOUT = 120


def put(name, value):
    draft = os.path.join(FOLDER, f"{name}.{RANK}.draft")
    with open(draft, "w") as f:
        json.dump(value, f)
    os.rename(draft, os.path.join(FOLDER, name))


def get(name):
    path, end = os.path.join(FOLDER, name), time.monotonic() + TIMEOUT
    while not os.path.exists(path):
        if time.monotonic() > end:
            sys.exit(f"rank {RANK} waited {TIMEOUT} s for {name}")
        time.sleep(0.002)
    with open(path) as f:
        return json.load(f)


def transformer():
    torch.manual_seed(RANK)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).half().eval().cuda()
    x = torch.randn(4, 128, 512, device="cuda", dtype=torch.float16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # the graph cannot capture the set-up of the first call
        for _ in range(3):
            model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)

    def step():
        graph.replay()
        torch.cuda.synchronize()

    return step, 1


def cg():
    edge = 512
    n = edge * edge
    i = torch.arange(n)
    rows, columns, values = [i], [i], [torch.full((n,), 4.0)]
    for near, inside in ((i - 1, i % edge > 0), (i + 1, i % edge < edge - 1), (i - edge, i >= edge), (i + edge, i < n - edge)):
        rows.append(i[inside])
        columns.append(near[inside])
        values.append(torch.full((int(inside.sum()),), -1.0))
    a = torch.sparse_coo_tensor(torch.stack((torch.cat(rows), torch.cat(columns))), torch.cat(values), (n, n)).coalesce().to_sparse_csr().cuda()
    torch.manual_seed(RANK)
    x, r = torch.zeros(n, device="cuda"), torch.randn(n, device="cuda")
    state = {"p": r.clone(), "rr": torch.dot(r, r)}

    def step():
        for _ in range(10):
            ap = a @ state["p"]
            alpha = state["rr"] / torch.dot(state["p"], ap)
            x.add_(alpha * state["p"])
            r.sub_(alpha * ap)
            rr = torch.dot(r, r)
            state["p"] = r + (rr / state["rr"]) * state["p"]
            state["rr"] = rr
        if float(state["rr"]) < 1e-4:  # solved, so use the next right-hand side
            r.normal_()
            state["p"], state["rr"] = r.clone(), torch.dot(r, r)
        torch.cuda.synchronize()

    return step, 10


def done_by(at, t):
    low = sum(1 for x in at if x <= t)
    if low == 0 or low == len(at):
        return float(low)
    return low + (t - at[low - 1]) / (at[low] - at[low - 1])


def measure(name, make):
    step, units = make()
    for _ in range(5):
        step()
    put(f"{name}.ready.{RANK}", 0)
    if RANK == 0:
        for other in range(SIZE):
            get(f"{name}.ready.{other}")
        put(f"{name}.go", time.monotonic() + WARM)
    begin, at = get(f"{name}.go"), []
    while not at or at[-1] <= begin + WINDOWS * SECONDS:
        step()
        at.append(time.monotonic())
    edges = [done_by(at, begin + i * SECONDS) for i in range(WINDOWS + 1)]
    put(f"{name}.rate.{RANK}", [(b - a) * units / SECONDS for a, b in zip(edges, edges[1:])])


def main():
    imported = time.monotonic()
    with torch.inference_mode():
        torch.zeros(1, device="cuda")
        first = time.monotonic() - imported
        put(f"device.{RANK}", [torch.cuda.get_device_properties(0).multi_processor_count, first])
        for name in PROGRAMS:
            measure(name, {"transformer": transformer, "cg": cg}[name])
            if RANK == 0:
                devices = [get(f"device.{r}") for r in range(SIZE)]
                rates = [get(f"{name}.rate.{r}") for r in range(SIZE)]
                print(json.dumps({"program": name, "window_s": SECONDS, "total": sum(map(sum, rates)) / WINDOWS, "rates": rates,
                                  "sms": [d[0] for d in devices], "first_call_s": [round(d[1], 4) for d in devices],
                                  "import_s": round(imported - began, 2)}), flush=True)


main()
