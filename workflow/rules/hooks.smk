# Around the jobs: the process that forks the scripts, and a summary at the end. Skipped with `--no-hooks`, and if this
# workflow is a module of another one.
import shutil
import subprocess
import time

from snakemake.logging import logger

# common.smk says where the package is.
from pflpipe.files import is_full, write_text

BEGAN = time.time()


def asked_studies():
    """Returns the studies of the jobs of this workflow."""
    names = sorted({Path(name).parts[0] for name in ASKED["study"]})
    return [PROJECT.outline(name) for name in names]


def cancel_cluster_jobs():
    """Cancels the jobs of this folder. After Ctrl-C the plugin for SLURM cancels the jobs that it knows, and then still submits those in
    its queue, two at a time, which takes minutes on a busy cluster."""
    if shutil.which("squeue"):
        command = ["squeue", "--me", "--noheader", "--format=%i|%k|%Z"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        jobs = [line.split("|", 2) for line in listed.stdout.splitlines()]
        # The plugin's comments begin with the rule.
        found = [
            job
            for job, comment, folder in jobs
            if comment.startswith("rule_") and folder == str(Path.cwd())
        ]
        if found:
            subprocess.run(["scancel", *found], check=False)


onstart:
    write_text(PLANNED, PROJECT.note(asked_studies()))
    if FORKS:
        more = mlflow_export.MODULES if "track" in SCRIPTS else ()
        forks.start(FORKS, SOURCES, (*forks.PRELOADED, *more))


onsuccess:
    from pflpipe.pipeline import run_summary  # pandas, which a dry run does without

    PLANNED.unlink(missing_ok=True)
    for line in run_summary.lines(asked_studies(), SETTINGS, TRACKING, BEGAN):
        logger.info(line)


onerror:
    PLANNED.unlink(missing_ok=True)
    cancel_cluster_jobs()
    # A log on a disk without room is empty.
    for folder in filter(is_full, (SETTINGS.results_dir, SETTINGS.data_dir)):
        logger.error(
            f"{folder}: the disk is full; make room, then the same command goes on"
        )
