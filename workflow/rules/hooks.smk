# What happens around the jobs: the process that scripts are forks of, the line on the terminal, the words at the end.
import subprocess
import time

from snakemake.logging import logger
from snakemake.settings.enums import Quietness

# common.smk says where the package is.
from pflpipe.files import is_full
from pflpipe.pipeline import forks, watch

BEGAN = time.time()
LINES = []


def asked_studies():
    """Returns the studies that the jobs of this workflow are about."""
    found = {job.wildcards_dict.get("study", "") for job in workflow.dag.jobs}
    names = sorted({Path(name).parts[0] for name in found if name})
    return [PROJECT.outline(name) for name in names]


def ended(how):
    for line in LINES:
        line.stop(how)


# Scripts on this machine are forks of one process (docs/reruns.md); `--no-hooks` leaves each an interpreter of its own. A job on a
# cluster sets PFLPIPE_PYTHON for itself, and finds in PFLPIPE_NOTED what the code and the studies were when it was planned.
onstart:
    names = [one.name for one in workflow.rules if not workflow.is_local(one)]
    noted = PROJECT.note(asked_studies(), names)
    if not workflow.local_exec:
        os.environ.update(PFLPIPE_NOTED=noted)
    if not CONDA:
        os.environ.update(PFLPIPE_PYTHON=forks.start(SOURCES))
    if workflow.local_exec:
        # Snakemake's limit of 100 new jobs a second sets a timer at every look at the queue, and every timer is another look: after
        # 300 jobs that takes 0.4 of a core, and more with each job. On one machine the cores are limit enough.
        workflow.scheduler.job_rate_limiter = None
    # One line instead of six for every job (docs/cli.md); a user who asks Snakemake for its reasons gets all it says.
    training = [
        job for job in workflow.dag.needrun_jobs() if job.rule.name == "train"
    ]
    LINES.append(
        watch.attach(
            watch.Watch(
                watch.Studies(asked_studies(), SETTINGS),
                {job.wildcards.run for job in training},
                SETTINGS.results_dir,
            ),
            logger,
            terse=Quietness.REASON in workflow.output_settings.quiet,
        )
    )


onsuccess:
    from pflpipe.pipeline import outcome  # pandas, which a dry run does without

    ended("with everything done")
    for line in outcome.lines(asked_studies(), SETTINGS, TRACKING, BEGAN):
        logger.info(line)


onerror:
    # After Ctrl-C the plugin for SLURM cancels the jobs that it knows of, and then submits what was about to be submitted: two at a
    # time, which takes a busy cluster minutes. All jobs of one snakemake have one name.
    if name := getattr(workflow.scheduler._executor, "run_uuid", ""):
        subprocess.run(["scancel", f"--name={name}"], check=False)
    ended("with jobs that failed; the same command tries them again")
    # A log on a disk without room is empty.
    for folder in filter(is_full, (SETTINGS.results_dir, SETTINGS.data_dir)):
        logger.error(
            f"{folder}: the disk is full; make room, then the same command goes on"
        )
