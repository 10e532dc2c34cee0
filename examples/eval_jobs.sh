#!/usr/bin/env bash
# Four jobs on four GPUs: each rank runs one. Arguments are those of the runner: --output_dir runs/mine --resume
exec python -m torch.distributed.run --nproc_per_node=4 \
    -m digirl_dist.evaluate.eval_runner --eval_jobs_config "$(dirname "$0")/jobs.json" "$@"
