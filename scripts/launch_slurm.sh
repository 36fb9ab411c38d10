#!/usr/bin/env bash
# Train one run on GPU nodes of a Slurm cluster, in an environment that has lenmem (`pip install '.[cuda13]'`):
#
#   DIRECTORY=/shared/runs/copy sbatch --nodes 4 scripts/launch_slurm.sh lantm/copy --training.seeds 16
#
# DIRECTORY is on a file system that every node has mounted. The same line again goes on from the last checkpoint.
#
#SBATCH --job-name=lenmem
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
set -euo pipefail
: "${DIRECTORY:?is where the run goes}"

# One process a GPU: jax takes the one numbered SLURM_LOCALID, so every process has to see all GPUs of its node (no
# --gpus-per-task). Five minutes before the time is up they get SIGTERM, save together and exit.
if [ -e "$DIRECTORY/metrics.jsonl" ] || [ -e "$DIRECTORY/checkpoints" ]; then set -- "$@" --resume; fi
exec srun --cpus-per-task "$SLURM_CPUS_PER_TASK" lenmem train "$@" --distributed --directory "$DIRECTORY"
