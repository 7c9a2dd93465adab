#!/usr/bin/env bash
# Trains and tests one experiment with several seeds and reports them together:
#   bash scripts/run_seeds.sh configs/experiment/fb237_v1_rotate.yaml runs/fb237_v1 0 1 2
# A seed whose test is done is left alone, and one that was interrupted goes on where it stopped.
set -euo pipefail
config=$1 group=$2
shift 2
for seed in "$@"; do
    run="$group/seed$seed"
    if [ -f "$run/metrics.json" ] && grep -q '"test":' "$run/metrics.json"; then
        echo "$run is done"
        continue
    fi
    if [ -f "$run/checkpoints/last.ckpt" ]; then
        sheafprop fit --resume "$run"
    else
        # Stopped before its first checkpoint: there is nothing in it to go on with.
        [ ! -f "$run/run.yaml" ] || rm -r "$run"
        sheafprop fit --config "$config" --seed_everything "$seed" --run.group "$group" --run.name "seed$seed"
    fi
    sheafprop test --run "$run"
done
