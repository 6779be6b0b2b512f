# SPDX-License-Identifier: Apache-2.0
import gpu

gpu.imported(__name__)
random = gpu.Anything()


def jit(function):
    return function


def value_and_grad(_):
    return lambda *_: (gpu.Anything(), [gpu.Anything()] * 4)
