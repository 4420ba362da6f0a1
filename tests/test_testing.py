"""What others put into their own tests: an assertion, a fixture of pytest, and an action of GitHub
that fail where a claim does not hold."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

import tabled
from called import called
from pflpipe.errors import PrivacyError
from pflpipe.testing import assert_private

TABLES = tabled.table("test_testing")
ROOT = Path(__file__).resolve().parents[1]
CLAIM = {"clients": 10, "noise_multiplier": 1.0, "delta": 1e-5}


THEIRS = ModuleType("release")
exec(TABLES["FILE"], THEIRS.__dict__)


def failure(release: Callable[..., Any], **how: Any) -> list[str]:
    """The lines of the error."""
    with pytest.raises(AssertionError) as failed:
        assert_private(release, **CLAIM, **how)
    return str(failed.value).splitlines()


def test_noise_of_half_the_claim_in_a_thousand_numbers_fails_with_the_attack_in_five_lines():
    verdict, there, absent, statistic, bound = failure(THEIRS.half, dimension=1_000)
    assert verdict.startswith("half: refuted: one client moves the result by")
    assert re.search(r"epsilon (9\.[89]|10|10\.0) and not 4\.4", verdict)
    assert " C on " in there
    assert absent.split(maxsplit=2)[2] == "it sends zeros"
    assert "draws each" in statistic
    lower = float(bound.split("at least ")[1].split(",")[0])
    assert 4.38 < lower < 10
    assert bound.endswith("the attack shows it")


@pytest.mark.parametrize(
    ("adjacency", "absent"),
    [("add_remove", "it is left out"), ("replace_one", "it sends the opposite")],
)
def test_the_failure_says_what_the_other_input_has_in_place_of_the_client(adjacency, absent):
    assert failure(THEIRS.half, adjacency=adjacency, seconds=2)[2].endswith(absent)


def test_a_bound_below_the_claim_is_not_called_a_proof_by_the_attack():
    def nearly(messages, weights, rng):
        return THEIRS.noised(messages, rng, 0.9)

    bound = failure(nearly, seconds=2)[4]
    assert float(bound.split("at least ")[1].split(",")[0]) < 4.38
    assert bound.endswith("the first line shows it")


def test_noise_that_follows_the_messages_fails():
    def following(messages, weights, rng):
        finite = np.nan_to_num(messages, nan=0, posinf=0, neginf=0)
        return THEIRS.noised(messages, rng, 3.0 + min(abs(finite).max(), 1.0))

    with pytest.raises(AssertionError, match=r"following: (unsound|refuted): .*\n.*\n.*\n.*\n.*"):
        assert_private(following, **CLAIM, seconds=2)


def test_a_sound_release_passes_and_says_how_much_less_noise_would_have_failed():
    found = assert_private(THEIRS.sound, **CLAIM, seconds=2)
    assert "it would have found noise below 0." in found.sentence


def test_a_claim_that_nobody_can_have_is_no_failed_assertion():
    with pytest.raises(PrivacyError, match="neither a noise multiplier nor an epsilon"):
        assert_private(THEIRS.sound, clients=10, delta=1e-5)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder with somebody's release and its tests."""
    (tmp_path / "release.py").write_text(TABLES["FILE"])
    (tmp_path / "test_release.py").write_text(TABLES["TESTS"])
    (tmp_path / "pytest.ini").write_text("[pytest]\nprivate_seconds = 0.01\n")
    return tmp_path


def test_the_fixture_fails_their_test_with_the_attack_alone(theirs):
    plugin = ("-p", "pflpipe.interface.fixtures", "-p", "no:cacheprovider")
    variables = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")}
    told = called(sys.executable, "-m", "pytest", *plugin, folder=theirs, code=1, **variables)
    assert "1 failed, 1 passed" in told.stdout
    assert "E       AssertionError: half: refuted" in told.stdout
    assert "audit.py" not in told.stdout
    assert "def assert_private" not in told.stdout


def action(folder: Path, release: str, claim: str, code: int) -> str:
    """Run the action's attack as GitHub does: values of inputs in the environment, bash -e."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (step,) = (one for one in steps if "pflpipe audit" in one["run"])
    given = {"release": release, "claim": claim, "seconds": "2"}
    values = {name: given[text[11:-3]] for name, text in step["env"].items()}
    assert step["shell"] == "bash"
    assert "${{" not in step["run"]
    values["PYTHONPATH"] = str(ROOT / "src")
    values["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    words = ("bash", "-e", "-o", "pipefail", "-c", step["run"])
    return called(*words, folder=folder, code=code, **values).stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_action_ends_as_the_audit_does_and_runs_nothing_that_an_input_says(theirs):
    script = theirs / "bin/pflpipe"
    script.parent.mkdir()
    code = "import sys; from pflpipe.pipeline.cli import main; sys.exit(main())"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    script.chmod(0o755)
    claim = "--clients 10 --noise-multiplier 1 --delta 1e-5"
    refuted = action(theirs, "release.py:half", claim, code=1)
    assert "one client moves the result by" in refuted
    action(theirs, "release.py:half", claim + " ; touch made $(touch made)", code=2)
    assert not (theirs / "made").exists()
