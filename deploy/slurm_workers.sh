#!/bin/bash
# Workers of an evaluation queue on a partition of GPU nodes without internet, one for each task of the array:
#
#     sbatch --partition=gpu --array=0-3 deploy/slurm_workers.sh /shared/queue
#
# The search runs on the login node: ideatree run … pool=folder pool.path=/shared/queue device=cuda
# Further arguments go to the worker, see python -m evaluators.serve --help. IDEATREE_PYTHON is the Python of the
# environment on the nodes (default: /shared/ideatree/.venv/bin/python).
#SBATCH --job-name=ideatree-worker
#SBATCH --array=0-3
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=48G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=ideatree-worker-%A_%a.log
# A minute before the time limit Slurm tells the worker to end. It gives back what it has begun.
#SBATCH --signal=B:TERM@60
set -euo pipefail

queue=${1:?give the queue\'s folder: sbatch deploy/slurm_workers.sh /shared/queue}
shift
# `exec`, so that Slurm's signals reach the worker itself.
exec "${IDEATREE_PYTHON:-/shared/ideatree/.venv/bin/python}" -m evaluators.serve folder="$queue" idle=600 "$@"
