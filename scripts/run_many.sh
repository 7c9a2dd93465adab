#!/usr/bin/env bash
# Trains and tests several configurations with several seeds, one after the other, in one group:
#   bash scripts/run_many.sh runs/night "0 1 2" night/transe.yaml night/rotate.yaml
# Called again, it leaves what is done alone and goes on with what was interrupted. A run that fails
# is named at the end and does not stop the others.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n 's/^# \{0,1\}//; 2,5p' "$0" >&2
    exit 2
fi
group=$1 seeds=$2
shift 2
failed=()

one() {
    local config=$1 seed=$2 name=$3
    local run="$group/$name"
    if [ -f "$run/metrics.json" ] && grep -q '"test":' "$run/metrics.json"; then
        echo "$run is done"
        return
    fi
    if [ -f "$run/checkpoints/last.ckpt" ]; then
        sheafprop fit --resume "$run" || return
    else
        # Stopped before its first checkpoint: there is nothing in it to go on with.
        [ ! -f "$run/run.yaml" ] || rm -r "$run"
        sheafprop fit --config "$config" --seed_everything "$seed" \
            --run.group "$group" --run.name "$name" || return
    fi
    sheafprop test --run "$run"
}

for config in "$@"; do
    for seed in $seeds; do
        name="$(basename "$config" .yaml)-seed$seed"
        one "$config" "$seed" "$name" || {
            [ $? -ne 130 ] || exit 130 # interrupted from the keyboard
            failed+=("$name")
        }
    done
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
