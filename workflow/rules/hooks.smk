# What happens around the jobs: the process that scripts are forks of, the line on the terminal, the words at the end.
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


# Scripts on this machine are forks of one process (docs/reruns.md); `--no-hooks` leaves each an interpreter of its own.
onstart:
    if workflow.local_exec:
        # Snakemake's limit of 100 new jobs a second sets a timer at every look at the queue, and every timer is another look: after
        # 300 jobs that takes 0.4 of a core, and more with each job. On one machine the cores are limit enough.
        workflow.scheduler.job_rate_limiter = None
        if not CONDA:
            PROJECT.note_code()
            os.environ.update(PFLPIPE_PYTHON=forks.start(SOURCES))
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
    for line in outcome.lines(
        asked_studies(), SETTINGS, project.without_credentials(TRACKING), BEGAN
    ):
        logger.info(line)


onerror:
    ended("with jobs that failed; the same command tries them again")
    # A log on a disk without room is empty.
    for folder in filter(is_full, (SETTINGS.results_dir, SETTINGS.data_dir)):
        logger.error(
            f"{folder}: the disk is full; make room, then the same command goes on"
        )
