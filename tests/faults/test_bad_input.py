"""Studies, settings and arrays that nobody in their right mind writes: each is run or refused in
lines that begin with ``error:``, with exit code 2, and never with a traceback."""

import copy
import random
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import generated
import malformed
from pflpipe import options
from pflpipe.data import datasets
from pflpipe.errors import DataError
from pflpipe.methods.registry import NAMES
from pflpipe.pipeline import cli
from pflpipe.study import documents
from pflpipe.study.config import Config
from reliability import record

pytestmark = pytest.mark.faults
GOOD = "studies/good.yaml"
KEYS = ["privacy.epsilon", "training.lr", "partition.alpha", "model", "cases", "seeds", "x"]
PATHS = st.sampled_from(KEYS)
NAMED = st.sampled_from([*NAMES, "x", "my.py:x"])
WORDS = {
    "dataset": st.sampled_from(["digits", "mine", "cifar10", "../x"]),
    "names of files in studies/, without .yaml": st.just(["good"]),
    "keys": PATHS | st.text(min_size=1, max_size=4),
    "a known method, or file.py:name with a path relative to the study's file, which is run": NAMED,
}
SCHEMA = documents.schema()
STUDIES = generated.of_schema(SCHEMA, SCHEMA, WORDS)
# Half of them begin with a study that can be run, so that what comes after the schema is reached.
PARTS = STUDIES.flatmap(lambda study: st.sampled_from([{k: v} for k, v in study.items()]))
OFTEN_GOOD = STUDIES | PARTS.map(lambda part: copy.deepcopy(malformed.STUDY) | part)
CONFIGS = generated.of_schema(options.schema(Config), {}, WORDS)
MANY = {"deadline": None, "database": None, "phases": [Phase.generate]}
MANY |= {"suppress_health_check": list(HealthCheck)}


@pytest.fixture
def answer(good, monkeypatch, capsys):
    """Return a function that writes a file, asks ``pflpipe validate`` about the folder and returns
    its exit code."""
    monkeypatch.setattr(sys, "argv", ["pflpipe", "validate"])
    files = {path.name for path in good.rglob("*")}

    def ask(file: str, text: str) -> int:
        Path(file).write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        code = int(stopped.value.code or 0)
        lines = said.err.split("\n")[:-1]
        assert code in (0, 2)
        assert (code == 2) == bool(lines)
        assert all(line.startswith("error: ") for line in lines)
        assert bool(said.out) == (code == 0)
        assert {path.name for path in good.rglob("*")} == files, "nothing was written or run"
        return code

    return ask


def codes(answer, documents: st.SearchStrategy, number: int, file: str, part: int = 0) -> list[int]:
    """The exit codes of so many documents; each part has others."""
    found = []

    @seed(part)
    @settings(**MANY, max_examples=number)
    @given(documents)
    def each(document: object) -> None:
        found.append(answer(file, yaml.safe_dump(document, sort_keys=False, allow_unicode=True)))

    each()
    assert len(found) >= number
    return found


@pytest.mark.parametrize("part", range(2))
def test_six_hundred_studies_made_of_the_schema_and_changed_are_run_or_refused(part, answer, long):
    number, studies = 3000 if long else 300, generated.changed(OFTEN_GOOD)
    assert codes(answer, studies, number, GOOD, part).count(2) > 100
    what = f"300 studies made of the schema with up to three places changed (part {part + 1} of 2)"
    outcome = "no traceback: run, or refused with exit code 2 and lines that begin with `error:`"
    record(what, outcome)


def test_two_hundred_settings_made_of_the_schema_and_changed_are_accepted_or_refused(answer, long):
    number = 2000 if long else 200
    assert {*codes(answer, generated.changed(CONFIGS), number, "config.yaml")} == {0, 2}
    what = "200 config.yaml made of the schema with up to three places changed"
    record(what, "no traceback: accepted, or refused with exit code 2")


def test_two_hundred_studies_with_other_letters_are_run_or_refused(answer, long):
    text, draw, refused = Path(GOOD).read_text(), random.Random(0), 0
    pieces = ["\t", "\x00", "&a ", "*a", "!!python/name:os.system ", "!x ", "<<: ", "- ", ": "]
    pieces += ["'", '"', "{", "]", "\n", "%YAML 9\n", "---\n", "? ", "\u2028", "\ufeff", "1e999"]
    for _ in range(2000 if long else 200):
        changed = text
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(changed))
            changed = changed[:place] + draw.choice(pieces) + changed[place + draw.randint(0, 4) :]
        refused += answer(GOOD, changed) == 2
    assert refused > 100
    record("200 study files with letters changed", "no traceback: run, or refused with exit code 2")


def test_three_hundred_damaged_archives_are_read_or_refused(tmp_path, long):
    images, labels = np.ones((9, 4, 4), np.uint8), np.arange(9) % 3
    malformed.arrays(tmp_path, test_images=images, test_labels=labels)
    file, draw, refused = tmp_path / "mine.npz", random.Random(0), 0
    content = file.read_bytes()
    with zipfile.ZipFile(file) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}

    def damaged(before: bytes, end: int, most: int) -> bytes:
        after = bytearray(before)
        for _ in range(draw.randint(1, most)):
            after[draw.randrange(end)] = draw.randrange(256)
        return bytes(after)

    for number in range(3000 if long else 300):
        if number % 2:  # the archive
            whole = damaged(content, len(content), 4)
            file.write_bytes(whole[: draw.choice([len(whole), draw.randrange(len(whole))])])
        else:  # a header in an archive that is in order
            name = draw.choice(sorted(members))
            changed = members | {name: damaged(members[name], 128, 3)}
            with zipfile.ZipFile(file, "w", draw.choice([0, 8, 12, 14])) as bundle:
                for other, member in changed.items():
                    bundle.writestr(other, member)
        said = "mine.npz"
        try:
            datasets.read_header(file)
            datasets.prepare("mine", file, tmp_path, tmp_path / f"{number}.npz")
        except DataError as error:
            refused, said = refused + 1, str(error)
        assert "mine.npz" in said
        assert "\n" not in said
    assert refused > 100
    record("300 .npz files with bytes changed", "no traceback: read, or refused in one line")
