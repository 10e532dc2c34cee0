#!/usr/bin/env bash
# Two nodes: the same command on both, with 0 on the one whose address is given and 1 on the other.
#     examples/two_nodes.sh 0 <ip_of_master>:5555 train_iterations=100
#     examples/two_nodes.sh 1 <ip_of_master>:5555 train_iterations=100
[[ ${1-} =~ ^[0-9]+$ && ${2-} == *:* ]] || { echo "usage: $0 NODE_RANK ADDRESS:PORT [settings]" >&2; exit 2; }
node_rank=$1 address=${2%:*} port=${2##*:}
shift 2
exec python -m torch.distributed.run --nproc_per_node=2 --nnodes=2 --node_rank="$node_rank" \
    --master_addr="$address" --master_port="$port" \
    -m digirl_dist.train --config-name ranks --distributed "$@"
