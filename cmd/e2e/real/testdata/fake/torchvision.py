# SPDX-License-Identifier: Apache-2.0
import gpu

models = gpu.Anything()
