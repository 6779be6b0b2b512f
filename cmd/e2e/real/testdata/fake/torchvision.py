# SPDX-License-Identifier: Apache-2.0
import gpu

gpu.imported(__name__)

models = gpu.Anything()
