# What the rules share: the settings, the project, the commands. What the names of files mean is in pflpipe.pipeline.project.
import os
import re
import shlex
import sys
from collections import defaultdict
from pathlib import Path

# The workflow runs the code beside it, whatever else is installed; a module's is not beside the main Snakefile.
ROOT = Path(workflow.snakefile).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod

from pflpipe.simulation import origin
from pflpipe import program
from pflpipe.attacks import registry as attacks
from pflpipe.errors import PflpipeError
from pflpipe.files import canonical_json
from pflpipe.pipeline import forks, project
from pflpipe.pipeline.project import certified, each, published
from pflpipe.report import mlflow_export
from pflpipe.study import config as configuration


def check(question, *arguments):
    """Returns the answer while this file is parsed; a user's mistake ends snakemake with the line and the exit code of `pflpipe validate`."""
    try:
        return question(*arguments)
    except PflpipeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


# Name of a wildcard -> its values in the jobs of this workflow.
ASKED = defaultdict(set)


def ask(question):
    """Makes an input function of a function of the wildcards that may raise a user's mistake."""

    def answer(wildcards):
        for name, value in wildcards.items():
            ASKED[name].add(value)
        try:
            return question(wildcards)
        except PflpipeError as error:
            raise WorkflowError(str(error)) from None

    return answer


# A module has the settings that it was given: Snakemake skips the file.
if Path("config.yaml").exists() or not config:
    check(project.check_syntax, "config.yaml")

    configfile: "config.yaml"


SETTINGS = check(configuration.parse, config)
DATA, RESULTS = str(SETTINGS.data_dir), str(SETTINGS.results_dir)
COMPUTE = f"--device {SETTINGS.device} --backend {SETTINGS.backend}"
GPUS = int(SETTINGS.device.startswith("cuda"))
DATASET = f"{DATA}/{{dataset}}.npz"
PARTITION = f"{RESULTS}/partitions/{{partition}}.npz"
PLAN = f"{RESULTS}/plans/{{plan}}.json"
RUN = f"{RESULTS}/runs/{{run}}"

# A job on a cluster starts a snakemake of its own, which neither checks nor chooses again, but finds in a file what it was planned with.
MAIN = workflow.is_main_process
PLANNED = Path("logs/planned.json")
PROJECT = project.Project(
    SETTINGS,
    ROOT,
    thorough=MAIN,
    choose=(lambda study: checkpoints.choose.get(study=study)) if MAIN else None,
    noted=PLANNED.read_text() if PLANNED.exists() and not MAIN else "{}",
)
TRACKING = check(mlflow_export.address_of, SETTINGS.results_dir, SETTINGS.tracking_uri)
if MAIN:
    # The targets of another workflow, which has this one as a module, may be its own.
    is_module = Path(workflow.main_snakefile).resolve().parent not in (
        ROOT,
        ROOT / "workflow",
    )
    check(PROJECT.check, [] if is_module else sys.argv[1:])

# What belongs to this machine is in the environment of the commands and not in their text, which Snakemake compares with that of
# the last time. An address of MLflow may hold a password. On this machine scripts are forks of one process (docs/reruns.md).
CONDA = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
PATHS = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
SOURCES = os.pathsep.join(filter(None, PATHS))
FORKS = forks.new_address() if MAIN and not CONDA else None
os.environ.update(
    {
        "PFLPIPE_PYTHON": "python" if CONDA else sys.executable,
        "PFLPIPE_FORKS": str(FORKS or ""),
        "PFLPIPE_PATH": SOURCES,
        "PFLPIPE_ROOT": str(ROOT),
        "MLFLOW_TRACKING_URI": TRACKING,
        **program.KEEP_MEMORY,
        **({origin.COMMIT: origin.commit(ROOT)} if MAIN else {}),
    }
)


def script(name, words, measured=""):
    """Returns the command that runs a script of workflow/scripts with the package beside it.

    In the words RESULTS and DATA are the folders of config.yaml. What a script takes is noted under the name `measured`.
    """
    places = {"RESULTS": shlex.quote(RESULTS), "DATA": shlex.quote(DATA)}
    words = re.sub(r"\b(RESULTS|DATA)\b", lambda found: places[found[0]], words)
    file = shlex.quote(f"{RESULTS}/benchmarks/{name}/{measured}.tsv")
    measures = f"PFLPIPE_MEASURES={file} " * bool(measured)
    client = '"$PFLPIPE_ROOT/src/pflpipe/pipeline/forked.py"'
    command = (
        f'"$PFLPIPE_PYTHON" -IS {client} "$PFLPIPE_ROOT/workflow/scripts/{name}.py"'
    )
    return f'PYTHONPATH="$PFLPIPE_PATH" {measures}{command} {words} > {{log}} 2>&1'


def cells_of(wildcards):
    """Returns the cells that the wildcards of a job name."""
    return PROJECT.cells(dict(wildcards.items()))


def paths(pattern, chosen=lambda cells: cells):
    """Makes an input function that returns the path of each cell, or of those that `chosen` returns."""
    return ask(lambda wc: each(pattern, chosen(cells_of(wc))))


def code(name, files=lambda wc: ()):
    """Makes a parameter that follows from what a script means, and from what these files do."""
    return ask(lambda wc: PROJECT.code(name, files(wc)))


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
