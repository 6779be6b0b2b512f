# SPDX-License-Identifier: Apache-2.0
import gpu

GPT2LMHeadModel = GPT2Config = gpu.Anything()
