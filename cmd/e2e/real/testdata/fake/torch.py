# SPDX-License-Identifier: Apache-2.0
import os

import gpu

if os.environ.get("IMPORT_STARTS_CUDA"):
    gpu.kernel()
long = half = bfloat16 = float16 = None


def inference_mode():
    return lambda function: function


def set_num_threads(_):
    pass


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return gpu.Anything()
