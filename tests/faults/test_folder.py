"""What else happens to a folder: two pipelines, clocks that jump, files that come late, names that
a shell would read."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import faulty
import malformed
import tabled
import test_workflow
import warm
from faulty import SCORES
from reliability import record

TABLES = tabled.table("test_folder")
pytestmark = [pytest.mark.faults, pytest.mark.pipeline]


@pytest.fixture
def folder(ready, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready.folder, tmp_path / "project"))


def finished(folder: Path, ready: faulty.Ready) -> None:
    """The command ends well, with the same bits."""
    test_workflow.snakemake(folder, SCORES)
    assert faulty.bits(folder) == ready.bits


def started(name: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the tables, which starts Snakemake with these words."""
    all_words = ("-c", *words, SCORES)
    return warm.python(TABLES[name], all_words, folder, test_workflow.environment())


@pytest.mark.parametrize(("more", "said"), [("", "--unlock"), ("--nolock", "waiting: this run")])
def test_two_pipelines_in_one_folder_end_with_the_same_bits(more, said, folder, ready):
    result = started("TWO", folder, more, "--no-hooks", "--cores", "1")
    logs = "".join(file.read_text() for file in (folder / "logs/train").glob("*.log"))
    if not more:
        one, other = result.stdout.split()[-2:]  # the smaller exit code first
        assert one == "0"
        assert other == "0" or said in result.stderr
    assert "Traceback" not in logs
    finished(folder, ready)
    how = "without Snakemake's lock" if more else "at once"
    at_first = "" if more else "one of them refuses and says so; "
    afterwards = "the same command afterwards ends with the same bits"
    record(f"two pipelines in one folder, {how}", f"{at_first}{afterwards}")


def later(*files: Path, days: float) -> None:
    moment = time.time() + days * 86400
    for file in files:
        for path in (file, *file.rglob("*")):
            os.utime(path, (moment, moment))


def test_a_clock_that_jumps_changes_no_bit_and_repeats_nothing(folder, ready):
    results = folder / "results"
    later(results / "partitions", folder / "data", days=1)  # inputs of a clock that ran ahead
    refused = test_workflow.snakemake(folder, SCORES, code=1)
    assert "This could indicate a clock skew problem" in refused.stdout + refused.stderr
    later(results / "partitions", folder / "data", days=0)
    finished(folder, ready)
    later(results / "runs", results / "scores", days=2)
    assert test_workflow.to_do(folder, SCORES) == set()
    later(results, folder / "data", days=-9000)  # a machine that began in 2001
    assert test_workflow.to_do(folder, SCORES) == set()
    malformed.put("methods.0.hyperparameters", {"tau": 0.2}, "studies/tiny.yaml")(folder)
    later(results, folder / "data", days=3)  # what is edited now is older than what was made
    assert test_workflow.rules(test_workflow.to_do(folder, SCORES)) == {"train", "evaluate"}
    record(
        "clock jumps: inputs a day ahead",
        "snakemake names the file and the skew; after `touch` of it the same command ends with the "
        "same bits",
    )
    fault = "clock jumps: results, or all files, days ahead or years back"
    record(fault, "nothing is repeated, and an edit is noticed")


HIDE = f"if [ -e {SCORES} ]; then mv {SCORES} late.csv; fi"
SHOW = f"(tail --pid=$$ -s 0.3 -f /dev/null; mv late.csv {SCORES}) > /dev/null 2>&1 &"


def test_files_that_appear_late_are_waited_for_and_if_they_never_do_one_line_says_so(folder, ready):
    words = ("--no-hooks", "--cores", "1", "--latency-wait")
    ended = started("LATE", folder, HIDE, *words, "0")
    assert ended.returncode == 1
    assert "--latency-wait" in ended.stderr
    ended = started("LATE", folder, f"{HIDE}; {SHOW}", *words, "60")
    assert ended.returncode == 0, ended.stderr
    assert faulty.bits(folder) == ready.bits
    fault = "a result that appears after its job has ended (a network's file system)"
    outcome = "it is waited for as long as `--latency-wait` says; then a line names that option"
    record(fault, outcome)


NASTY = 're sults\'; touch pwned; "$(touch pwned)" `touch pwned` & #'


def test_nothing_that_a_config_or_a_study_says_reaches_a_shell_unquoted(folder, tmp_path):
    """Folders, a data set's file, a method's file, titles and labels, each with all that a shell
    reads."""
    os.mkdir(folder / f"studies/{NASTY}")
    shutil.copy(test_workflow.ROOT / "docs/examples/easgd.py", folder / f"studies/{NASTY}/m.py")
    os.mkdir(folder / f"{NASTY} in")
    malformed.arrays(folder / f"{NASTY} in")
    mine = {"studies": ["tiny"], "datasets": {"mine": f"{NASTY} in/mine.npz"}}
    mine |= {"data_dir": f"{NASTY} data", "results_dir": NASTY}
    malformed.write(folder / "config.yaml", mine)
    own = {"name": f"{NASTY}/m.py:easgd", "variant": "'; touch pwned #$(touch pwned)"}
    changes = {"title": NASTY, "description": NASTY, "dataset": "mine"}
    changes |= {"methods": [{"name": "local_only"}, own]}
    changes |= {"partition": {"kind": "iid", "clients": 3}}
    malformed.write(folder / "studies/tiny.yaml", faulty.STUDY | changes)
    targets = [f"{NASTY}/scores/tiny/{name}.csv" for name in ("local_only", "easgd")]
    test_workflow.snakemake(folder, *targets)
    assert not list(folder.rglob("pwned"))
    assert all((folder / target).is_file() for target in targets)
    what = "quotes, `$(...)`, `;`, `#`, spaces in folders, files, methods' files, titles and labels"
    record(what, "nothing of it reaches a shell; the study is made")
