# What the rules share: the settings, the project, the commands. What the names of files mean is in pflpipe.pipeline.project.
import os
import sys
from pathlib import Path

# The workflow runs the code beside it, whatever else is installed; a module's is not beside the main Snakefile.
ROOT = Path(workflow.snakefile).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from snakemake.settings.types import DeploymentMethod

from pflpipe import origin
from pflpipe.attacks import registry as attacks
from pflpipe.errors import PflpipeError
from pflpipe.files import canonical_json
from pflpipe.pipeline import project
from pflpipe.pipeline.project import certified, each, published
from pflpipe.report import mlflow_export
from pflpipe.study import config as configuration


def answer(question, *arguments):
    """Calls `question`; a user's mistake ends snakemake with the line and the exit code of `pflpipe validate`."""
    try:
        return question(*arguments)
    except PflpipeError as error:
        print(f"error: {error}", file=sys.stderr)
        # Not an Exception, which Snakemake would wrap in a report of its own and end with 1.
        sys.exit(error.exit_code)


def ask(question):
    """Makes an input function of a function of the wildcards that may raise a user's mistake."""
    return lambda wildcards: answer(question, wildcards)


# A module has the settings that it was given.
if not workflow.modifier.skip_configfile and (
    Path("config.yaml").exists() or not config
):
    answer(project.check_syntax, "config.yaml")

    configfile: "config.yaml"


SETTINGS = answer(configuration.parse, config)
DATA, RESULTS = str(SETTINGS.data_dir), str(SETTINGS.results_dir)
GPUS = int(SETTINGS.device.startswith("cuda"))
DATASET = f"{DATA}/{{dataset}}.npz"
PARTITION = f"{RESULTS}/partitions/{{partition}}.npz"
PLAN = f"{RESULTS}/plans/{{plan}}.json"
RUN = f"{RESULTS}/runs/{{run}}"

# A job on a cluster starts a snakemake of its own, which neither checks nor chooses again.
MAIN = workflow.is_main_process
PROJECT = project.Project(
    SETTINGS,
    ROOT,
    thorough=MAIN,
    choose=(lambda study: checkpoints.choose.get(study=study)) if MAIN else None,
    noted="{}" if MAIN else os.environ.get("PFLPIPE_NOTED", "{}"),
)
if MAIN:
    answer(PROJECT.check)
    os.environ[origin.COMMIT] = origin.commit(ROOT)

# What belongs to this machine is in the environment of the commands and not in their text, which Snakemake compares with that of
# the last time. An address may hold a password.
TRACKING = answer(mlflow_export.address_of, SETTINGS.results_dir, SETTINGS.tracking_uri)
CONDA = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
PATHS = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
SOURCES = os.pathsep.join(filter(None, PATHS))
os.environ.update(
    PFLPIPE_PYTHON="python" if CONDA else sys.executable,
    PFLPIPE_PATH=SOURCES,
    PFLPIPE_ROOT=str(ROOT),
    MLFLOW_TRACKING_URI=TRACKING,
)


def script(name, words, measured=False):
    """Returns the command that runs a script of workflow/scripts with the package beside it."""
    measures = "PFLPIPE_MEASURES={params.measures:q} " * measured
    command = f'"$PFLPIPE_PYTHON" "$PFLPIPE_ROOT/workflow/scripts/{name}.py"'
    return f'PYTHONPATH="$PFLPIPE_PATH" {measures}{command} {words} > {{log}} 2>&1'


def cells_of(wildcards):
    """Returns the cells that the wildcards of a job name."""
    return PROJECT.cells(dict(wildcards.items()))


wildcard_constraints:
    figure=rf"(?!({'|'.join(attacks.NAMES)})\b)\w+",
    study=r"(?!(all|audit)\b)\w+",
    method=r"\w+",
    dataset=r"[a-z0-9_]+",
    attack="|".join(attacks.NAMES),
    audit=r"[a-z0-9_+-]+",
    cell=r"[\w.+-]+",
    run=r"[\w.+-]+",
    partition=r"[\w.+-]+",
    plan=r"[\w.+-]+",
