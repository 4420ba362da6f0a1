# Shared by the rules: settings, project, commands. pflpipe.pipeline.project knows the cells of a file name.
import os
import re
import shlex
import sys
from collections import defaultdict
from pathlib import Path

# The workflow runs the code next to it, whichever version is installed. The main Snakefile may be another workflow's. Snakemake would
# also search the folder of the main Snakefile, and so take a torch.py of the user's for torch. In the wheel (pipeline/shipped) the
# workflow lies in the package, whose place Python knows.
ROOT = Path(workflow.snakefile).resolve().parents[2]
IS_CLONE = (ROOT / "src").is_dir()
CODE = [str(ROOT / "src")] * IS_CLONE
sys.path[:] = [*CODE, *(p for p in sys.path if Path(p).resolve() != ROOT)]

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import min_version

min_version("9.10")

from pflpipe import program
from pflpipe.attacks import jobs as attacks
from pflpipe.errors import PflpipeError
from pflpipe.files import canonical_json
from pflpipe.pipeline import forks, mlflow_export, project
from pflpipe.pipeline.project import certified, each, published
from pflpipe.pipeline.status import PLANNED
from pflpipe.simulation import checkout
from pflpipe.study import config as configuration
from pflpipe.study import cost


def check(question, *arguments):
    """Returns the answer while this file is parsed. A user's mistake ends snakemake with the line and the exit code of `pflpipe validate`."""
    try:
        return question(*arguments)
    except PflpipeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


# Name of a wildcard -> its values in the jobs of this workflow; names of their scripts.
ASKED, SCRIPTS = defaultdict(set), set()


def ask(question):
    """Makes an input function from a function of the wildcards that may raise a PflpipeError."""

    def answer(wildcards):
        for name, value in wildcards.items():
            ASKED[name].add(value)
        try:
            return question(wildcards)
        except PflpipeError as error:
            raise WorkflowError(str(error)) from None

    return answer


# The settings of a module come from the other workflow: Snakemake skips the file.
if Path("config.yaml").exists() or not config:
    check(project.check_syntax, "config.yaml")

    configfile: "config.yaml"


SETTINGS = check(configuration.parse, config)
DATA, RESULTS = str(SETTINGS.data_dir), str(SETTINGS.results_dir)
COMPUTE = f"--device {SETTINGS.device} --backend {SETTINGS.backend}"
GPUS = int(SETTINGS.device.startswith("cuda"))
DATASET = f"{DATA}/{{dataset}}.npz"
EXAMPLES = f"{DATA}/{{data}}.npz"  # the data set, or features of it
PARTITION = f"{RESULTS}/partitions/{{partition}}.npz"
PLAN = f"{RESULTS}/plans/{{plan}}.json"
RUN = f"{RESULTS}/runs/{{run}}"
# What is as many as runs, and may be in an object store.
STORED = (PARTITION, PLAN, RUN)

# A job on a cluster starts its own snakemake. It does not check or choose again, but reads in a file with which digests it was planned.
MAIN = workflow.is_main_process
PROJECT = project.Project(
    SETTINGS,
    ROOT,
    thorough=MAIN,
    choose=(lambda study: checkpoints.choose.get(study=study)) if MAIN else None,
    noted=PLANNED.read_text() if PLANNED.exists() and not MAIN else "{}",
)
TRACKING = check(mlflow_export.address_of, SETTINGS.results_dir, SETTINGS.tracking_uri)
if MAIN:
    # If another workflow uses this one as a module, the targets may be its own.
    is_module = Path(workflow.main_snakefile).resolve().parent not in (
        ROOT,
        ROOT / "workflow",
    )
    check(PROJECT.check, [] if is_module else sys.argv[1:])

program.name_user()  # Snakemake asks for a name
# Machine-specific values are in the environment of the commands, not in their text, which Snakemake compares with that of the last
# run. An address of MLflow may contain a password. On this machine scripts are forks of one process (docs/reliability.md).
CONDA = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
PATHS = [*CODE, os.environ.get("PYTHONPATH", "")]
SOURCES = os.pathsep.join(filter(None, PATHS))
FORKS = forks.new_address() if MAIN and not CONDA else None
os.environ.update(
    {
        "PYTHONSAFEPATH": "1",  # nor does what is started with `python -m` search this folder
        "PFLPIPE_PYTHON": "python" if CONDA else sys.executable,
        "PFLPIPE_FORKS": str(FORKS or ""),
        "PFLPIPE_PATH": SOURCES,
        "PFLPIPE_ROOT": str(ROOT),
        **{
            name: os.environ.get(name, value)
            for name, value in mlflow_export.ENVIRONMENT.items()
        },
        "MLFLOW_TRACKING_URI": TRACKING,
        **program.KEEP_MEMORY,
        **({checkout.COMMIT: checkout.commit(ROOT)} if MAIN else {}),
    }
)


def script(name, words, measured=""):
    """Returns the command that runs a script of workflow/scripts with the package of this workflow.

    RESULTS and DATA in the words stand for the folders of config.yaml. Seconds and memory of a script go to the file `measured`.
    """
    places = {"RESULTS": shlex.quote(RESULTS), "DATA": shlex.quote(DATA)}
    words = re.sub(r"\b(RESULTS|DATA)\b", lambda found: places[found[0]], words)
    file = shlex.quote(f"{RESULTS}/benchmarks/{name}/{measured}.tsv")
    measures = f"PFLPIPE_MEASURES={file} " * bool(measured)
    package = "src/pflpipe" if IS_CLONE else "../.."
    client = f'"$PFLPIPE_ROOT/{package}/pipeline/forked.py"'
    command = (
        f'"$PFLPIPE_PYTHON" -IS {client} "$PFLPIPE_ROOT/workflow/scripts/{name}.py"'
    )
    return f'PYTHONPATH="$PFLPIPE_PATH" {measures}{command} {words} > {{log}} 2>&1'


def cells_of(wildcards):
    """Returns the cells that the wildcards of a job name."""
    return PROJECT.cells(dict(wildcards.items()))


def stored(path):
    """Returns a file of the object store of config.yaml, of which Snakemake gives each job a copy; without a store the path itself."""
    return storage(f"{SETTINGS.store}/{path}") if SETTINGS.store else path


def files(pattern, cells):
    """Returns the path of each cell."""
    found = each(pattern, cells)
    return list(map(stored, found)) if pattern in STORED else found


def paths(pattern, chosen=lambda cells: cells):
    """Makes an input function that returns the path of each cell, or of those that `chosen` returns."""
    return ask(lambda wc: files(pattern, chosen(cells_of(wc))))


def code(name, files=lambda wc: ()):
    """Makes a parameter from the digests of the code of a script and of these files."""

    def digests(wildcards):
        SCRIPTS.add(name)
        return PROJECT.code(name, files(wildcards))

    return ask(digests)


# Scripts look for copies in RESULTS.
for pattern in STORED if SETTINGS.store and MAIN else ():
    check(project.link, Path(pattern).parent, Path(stored(pattern)).parent)


wildcard_constraints:
    figure=rf"(?!({'|'.join(attacks.NAMES)})\b)\w+",
    study=r"(?!(all|audit)\b)\w+",
    method=r"\w+",
    dataset=r"[a-z0-9_]+",
    data=r"[a-z0-9_]+\.[a-z]+-[0-9a-f]+",
    attack="|".join(attacks.NAMES),
    audit=r"[a-z0-9_+-]+",
    cell=r"[\w.+-]+",
    run=r"[\w.+-]+",
    partition=r"[\w.+-]+",
    plan=r"[\w.+-]+",
