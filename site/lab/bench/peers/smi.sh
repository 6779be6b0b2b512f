#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Replaces nvidia-smi on a simulated node. It reports GPUS devices, and takes the 104 ms of a call on an H200
# (measured).
sleep 0.104
case $1 in
-L) for ((i = 0; i < ${GPUS:-1}; i++)); do echo "GPU $i: NVIDIA H200"; done ;;
*) echo Default ;;
esac
