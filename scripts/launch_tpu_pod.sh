#!/usr/bin/env bash
# Train one run on all hosts of a TPU pod slice. From a machine with gcloud:
#
#   export TPU=my-slice ZONE=us-central2-b DIRECTORY=/mnt/shared/runs/copy
#   scripts/launch_tpu_pod.sh lantm/copy --training.seeds 16
#
# DIRECTORY is on a file system that every host has mounted (Filestore, say). The same line again goes on from the last
# checkpoint. lenmem has to be on every host, once:
#
#   gcloud compute tpus tpu-vm scp --recurse . "$TPU:lenmem" --zone "$ZONE" --worker all
#   gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker all --command "pip install './lenmem[tpu]'"
set -euo pipefail
: "${TPU:?is the name of the slice}" "${ZONE:?is its zone}" "${DIRECTORY:?is where the run goes}"

# One process a host; jax asks the slice for the others. A login shell, for what pip has put on the path.
there=$(printf '[ -e %q/metrics.jsonl ] || [ -e %q/checkpoints ]' "$DIRECTORY" "$DIRECTORY")
command=$(printf '%q ' lenmem train "$@" --distributed --directory "$DIRECTORY")
command="if $there; then resume=--resume; fi; $command \$resume"
exec gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker all --command "bash -lc $(printf '%q' "$command")"
