#!/usr/bin/env bash
# The host collects as ever and makes each update on four GPUs. Arguments are settings.
#     examples/host_update.sh worker_ips=[10.0.0.2,10.0.0.3]
# The same from the outside: torchrun --nproc_per_node=4 run.py --config-name host …
exec python run.py --config-path config/multimachine --config-name host trainer=torchrun trainer.nproc_per_node=4 "$@"
