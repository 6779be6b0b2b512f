# SPDX-License-Identifier: Apache-2.0
"""Programs like those that users write. A test runs them in jobs on real GPUs. Usage: programs.py NAME."""
import multiprocessing
import os
import sys
import time


def torch_work(seconds=2.0, device=0):
    """Multiplies matrices for some time. Returns CUDA_VISIBLE_DEVICES, the SMs that the program sees, and products a second."""
    import torch

    a = torch.randn(2048, 2048, device=f"cuda:{device}")
    (a @ a).sum().item()
    done, until = 0, time.time() + seconds
    while time.time() < until:
        for _ in range(10):
            a @ a
        torch.cuda.synchronize(device)
        done += 10
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")[:60], sms, done / seconds


def show(name, results):
    for visible, sms, rate in results:
        print(f"{name}: sms={sms} rate={rate:.0f}/s visible={visible}", flush=True)


def torch_pool():
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        show("torch multiprocessing", pool.starmap(torch_work, [(2.0, i % 2) for i in range(4)]))


def joblib_pool():
    import joblib

    show("joblib", joblib.Parallel(n_jobs=4)(joblib.delayed(torch_work)(2.0, i % 2) for i in range(4)))


def narrowed(i):
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[i % 2]
    return torch_work()


def executor():
    """Each worker sees one GPU, like the workers of Ray and Dask."""
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        show("workers that see one GPU", pool.map(narrowed, range(4)))


def cupy_work():
    import cupy

    a = cupy.random.rand(2048, 2048)
    rate, until = 0, time.time() + 2
    while time.time() < until:
        a @ a
        cupy.cuda.Device().synchronize()
        rate += 0.5
    show("cupy", [(os.environ["CUDA_VISIBLE_DEVICES"], cupy.cuda.Device().attributes["MultiProcessorCount"], rate)])


def jax_work():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    a = jax.numpy.ones((2048, 2048))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    rate, until = 0, time.time() + 2
    while time.time() < until:
        product(a).block_until_ready()
        rate += 0.5
    show("jax", [(os.environ["CUDA_VISIBLE_DEVICES"], getattr(jax.devices()[0], "core_count", 0), rate)])
    print(f"jax: {len(jax.devices())} devices", flush=True)


def by_local_rank():
    """Takes the device of its local rank, as Lightning and Kokkos do."""
    import torch

    rank, count = int(os.environ["SLURM_LOCALID"]), torch.cuda.device_count()
    show(f"rank {rank} of {count} devices", [torch_work(2.0, rank % count)])


def lightning():
    """Lightning chooses its devices by itself."""
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(512, 512)

        def training_step(self, batch, index):
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(6400, 512)), 64)
    from lightning.pytorch.plugins.environments import LightningEnvironment

    trainer = lightning.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False, plugins=[LightningEnvironment()])
    trainer.fit(Model(), data)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    print(f"lightning: sms={sms} steps={trainer.global_step}", flush=True)


def mpi_buffers():
    """Sums an array of the GPU over all ranks, through the host, because Debian's Open MPI does not support device memory."""
    import cupy
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    part = cupy.full(1 << 20, world.rank + 1.0)
    total = cupy.asarray(world.allreduce(cupy.asnumpy(part)))
    right = bool((total == world.size * (world.size + 1) / 2).all())
    print(f"mpi4py: rank {world.rank} of {world.size}: {'right' if right else 'WRONG'} visible={os.environ['CUDA_VISIBLE_DEVICES'][:12]}", flush=True)


def member(amount=60):
    """A member of an ensemble: a fixed amount of work."""
    import cupy

    a = cupy.random.rand(4096, 4096)
    for _ in range(amount):
        a @ a
    cupy.cuda.Device().synchronize()
    print(f"member sms={cupy.cuda.Device().attributes['MultiProcessorCount']} gpu={os.environ.get('CUDA_VISIBLE_DEVICES', '')[:12]}", flush=True)


def python_shell():
    """Starts a child process that reads and runs cells, like a notebook's kernel."""
    import subprocess

    cells = "import torch\na = torch.ones(1000, device='cuda')\nprint('cell:', int(a.sum().item()), torch.cuda.get_device_properties(0).multi_processor_count)\n"
    print(subprocess.run([sys.executable, "-i", "-q"], input=cells, capture_output=True, text=True).stdout, flush=True)


def numbers():
    """Parses CUDA_VISIBLE_DEVICES as numbers, like vLLM and Ray. WANT is the UUID of the GPU that the rank was promised."""
    import torch

    first = int(os.environ["CUDA_VISIBLE_DEVICES"].split(",")[0])
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    right = "right" if uuid in os.environ["WANT"] else "WRONG " + uuid
    try:
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
        limit = "none"
    except torch.cuda.OutOfMemoryError:
        limit = "holds"
    print(f"numbers: first={first} count={torch.cuda.device_count()} {right}, limit {limit}", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*map(int, sys.argv[2:]))
