#!/usr/bin/env bash
# One node, one process per GPU: each rank has its own emulators, gradients are shared. Arguments are settings.
#     examples/one_node.sh train_iterations=100
# To choose GPUs: CUDA_VISIBLE_DEVICES=0,1 examples/one_node.sh
exec python -m torch.distributed.run --nnodes=1 --nproc_per_node=2 \
    -m digirl_dist.train --config-name ranks --distributed "$@"
