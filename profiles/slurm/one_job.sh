#!/bin/sh
#SBATCH --job-name=pflpipe
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=16 --mem=32000
#SBATCH --time=12:00:00 --requeue --open-mode=append
# sbatch profiles/slurm/one_job.sh [TARGET ...]      (docs/slurm.md, "Many short runs")
# A whole study in one job: one Snakemake on one node, as many runs at once as there are cores and memory.

# A job that SLURM starts again after it lost its node finds the folder locked by itself.
.venv/bin/snakemake --unlock
[ $# -gt 0 ] || set -- results/tables/all.csv
exec .venv/bin/snakemake --cores "$SLURM_CPUS_PER_TASK" --resources "mem_mb=$SLURM_MEM_PER_NODE" -- "$@"
