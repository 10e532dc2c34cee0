#!/usr/bin/env bash
# Emulators on every rank, updates by JAX. First the launcher's flags in one word, then settings. One node:
#     examples/jax_ranks.sh "--nnodes=1 --nproc_per_node=2" train_iterations=100
# Two nodes: the same command on both, with --node_rank=0 on the one whose address is given and 1 on the other.
#     examples/jax_ranks.sh "--nproc_per_node=2 --nnodes=2 --node_rank=0 --coordinator_address=<ip>:5555"
[[ ${1-} == --* ]] || { echo "usage: $0 \"--nnodes=1 --nproc_per_node=2 …\" [settings]" >&2; exit 2; }
read -ra flags <<< "$1"
shift
exec python -m digirl_dist.parallel.jax "${flags[@]}" \
    -m digirl_dist.train --config-name ranks --distributed trainer=jax "$@"
