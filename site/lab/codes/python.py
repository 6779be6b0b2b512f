# SPDX-License-Identifier: Apache-2.0
"""python.py FOLDER RANKS: one of RANKS processes that compute the same programs on one GPU, one after the other.

A process waits for the others in FOLDER before each program, warms up, and counts its own steps for WINDOW seconds. It
prints a line for each program: PROGRAM STEPS-A-SECOND. Each step ends with a value that the host reads, as a training
loop that logs its loss or a server that answers. Weights and data are random: only the time counts.
"""
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
WINDOW, WARM, PATIENCE = 1.2, 0.8, 90.0  # seconds
known = []


def program(make):
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

    net = torchvision.models.resnet18().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    images = torch.randn(16, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (16,), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(images), labels)
        return train(optimizer, loss)

    return step


@program
def gpt2_decode(context=512):
    """A token of GPT-2 (124 million parameters, float16), one sequence, with its cache of keys and values."""
    import torch
    import transformers

    net = transformers.GPT2LMHeadModel(transformers.GPT2Config()).half().cuda().eval()
    state = {"tokens": torch.zeros(1, 1, dtype=torch.long, device="cuda"), "cache": None, "length": 0}

    @torch.inference_mode()
    def step():
        if state["length"] == context:
            state.update(cache=None, length=0)
        out = net(state["tokens"], past_key_values=state["cache"], use_cache=True)
        state.update(tokens=out.logits[:, -1:].argmax(-1), cache=out.past_key_values, length=state["length"] + 1)
        return state["tokens"].item()

    return step


@program
def gnn():
    """A training step of a graph network (torch-geometric, three GCN layers of 128), 2,000 nodes and 20,000 edges."""
    import torch
    from torch_geometric.nn import GCN

    net = GCN(64, 128, 3, 16).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    nodes, edges = torch.randn(2000, 64, device="cuda"), torch.randint(2000, (2, 20000), device="cuda")
    labels = torch.randint(16, (2000,), device="cuda")

    def step():
        return train(optimizer, torch.nn.functional.cross_entropy(net(nodes, edges), labels))

    return step


@program
def gaussian_process():
    """A training step of an exact Gaussian process (gpytorch), 1,500 points in 8 dimensions."""
    import gpytorch
    import torch

    points, values = torch.randn(1500, 8, device="cuda"), torch.randn(1500, device="cuda")

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(points, values, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=8))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
    model = Model(likelihood).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    likely = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step():
        return train(optimizer, -likely(model(points), values))

    return step


@program
def diffusion():
    """A step of a diffusion sampler: a network of eight convolutions of 128 channels, 8 images of 64 x 64, float16."""
    import torch

    layers = [torch.nn.Conv2d(3, 128, 3, padding=1)]
    for _ in range(6):
        layers += [torch.nn.GroupNorm(8, 128), torch.nn.SiLU(), torch.nn.Conv2d(128, 128, 3, padding=1)]
    net = torch.nn.Sequential(*layers, torch.nn.Conv2d(128, 3, 3, padding=1)).half().cuda().eval()
    state = {"x": torch.randn(8, 3, 64, 64, device="cuda", dtype=torch.float16)}

    @torch.inference_mode()
    def step():
        noise = net(state["x"])
        state["x"] = (state["x"] - 0.01 * noise).clamp(-3, 3) + 0.01 * torch.randn_like(noise)
        return state["x"][0, 0, 0, 0].item()

    return step


@program
def jax_mlp():
    """A training step of a network of four layers of 1,024 in JAX, batch 256, jitted."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.PRNGKey(0), 6)
    weights = [jax.random.normal(k, (1024, 1024)) * 0.03 for k in keys[:4]]
    x, y = jax.random.normal(keys[4], (256, 1024)), jax.random.normal(keys[5], (256, 1024))

    def loss(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean((h - y) ** 2)

    @jax.jit
    def update(weights):
        value, slopes = jax.value_and_grad(loss)(weights)
        return value, [w - 0.01 * s for w, s in zip(weights, slopes)]

    state = {"weights": weights}

    def step():
        value, state["weights"] = update(state["weights"])
        return float(value)

    return step


def meet(folder, ranks, name):
    """Waits until all processes are here."""
    open(os.path.join(folder, f"{name}.{os.getpid()}"), "w").close()
    end = time.monotonic() + PATIENCE
    while sum(entry.startswith(name + ".") for entry in os.listdir(folder)) < ranks:
        if time.monotonic() > end:
            sys.exit(f"python.py: the others did not come to {name}")
        time.sleep(0.002)


def run(step, seconds):
    steps, begin = 0, time.monotonic()
    while True:
        step()
        steps += 1
        passed = time.monotonic() - begin
        if passed > seconds:
            return steps / passed


def main(folder, ranks):
    import torch

    torch.set_num_threads(1)
    for make in known:
        step = make()
        step()
        meet(folder, ranks, make.__name__ + "-made")
        run(step, WARM)
        meet(folder, ranks, make.__name__ + "-warm")
        print(make.__name__, run(step, WINDOW), flush=True)
        del step
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
