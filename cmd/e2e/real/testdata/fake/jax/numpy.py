# SPDX-License-Identifier: Apache-2.0
import gpu

mean = tanh = gpu.Anything()
