# SPDX-License-Identifier: Apache-2.0
"""Stands for PyTorch, JAX and their libraries in the test of python.py: each value that the host reads is the end of a
kernel of libcuda. GPU_FAILS=N: the Nth kernel of a process fails, as if memory were short. IMPORT_STARTS_CUDA=MODULE:
the import of that module runs a kernel."""
import os

import victim

kernels, launched = victim.Kernels(2), 0


def kernel():
    global launched
    if not launched:
        kernels.open()
    launched += 1
    if launched == int(os.environ.get("GPU_FAILS", 0)):
        raise RuntimeError("CUDA out of memory")
    kernels.launch(0.002)
    kernels.wait()
    return 1.0


def imported(module):
    if module == os.environ.get("IMPORT_STARTS_CUDA"):
        kernel()


class Anything:
    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_, **__):
        return Anything()

    def __getitem__(self, _):
        return Anything()

    def __iter__(self):
        return iter([Anything()] * 6)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def operate(self, *_):
        return Anything()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __neg__ = __pow__ = __truediv__ = operate

    def item(self):
        return kernel()

    def __float__(self):
        return kernel()
