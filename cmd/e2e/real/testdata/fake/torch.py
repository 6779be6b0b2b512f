# SPDX-License-Identifier: Apache-2.0
import gpu

gpu.imported(__name__)
long = half = bfloat16 = float16 = None


def inference_mode():
    return lambda function: function


def set_num_threads(_):
    pass


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return gpu.Anything()
