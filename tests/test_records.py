"""Records: what is written is read back, and a file of another version is refused in one line."""

import copy
import dataclasses
import json
import math

import pytest

from pflpipe.cells import Privacy
from pflpipe.errors import DataError, PflpipeError, PrivacyError
from pflpipe.files import write_json
from pflpipe.json_records import from_json, load, to_json
from pflpipe.privacy import plan as plans
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import Planned, ledger
from pflpipe.privacy.run_check import Residuals
from pflpipe.simulation.run_record import Diagnostics, Program, Record, Sizes

ASKED = Privacy("gaussian", noise_multiplier=0.0, delta=1e-3, clip_norm=0.5)
PLAN = make_plan(ASKED, rounds=3, sample_rate=1.0, clients=5)
PLANNED = Planned(PLAN, ledger(PLAN, ASKED, ("no_composition",)))
RUN = Record(
    {"method": "dp_fedavg", "model": {"width": [8]}},
    Sizes(3, 100, 100.0, 2000.0),
    Diagnostics(15, None, 0, Residuals(3, 0, 300, 0)),
    Program("cpu", "", "A processor", 2, "loop", 1, 1, {"torch": "2"}, "1234abc"),
    ({"kind": "loss", "name": "my.py:loss"},),
)


@pytest.mark.parametrize("record", [PLANNED, RUN], ids=["plan", "run"])
def test_what_is_written_is_read_back(record, tmp_path):
    write_json(tmp_path / "a.json", to_json(record))
    assert load(type(record), tmp_path / "a.json") == record
    assert json.dumps(to_json(record), allow_nan=False)


def test_infinity_is_a_word_in_the_file_and_a_number_in_python():
    assert to_json(PLANNED)["ledger"]["epsilon_central"] == "inf"
    assert from_json(Planned, to_json(PLANNED), "a").ledger.epsilon_central == math.inf


def without(values, *keys):
    block = values
    for key in keys[:-1]:
        block = block[key]
    del block[keys[-1]]


CHANGES = {
    "a missing key": (
        lambda values: without(values, "diagnostics", "residuals", "strangers"),
        "a.json: diagnostics.residuals.strangers; got 'no such key'; expected a whole number; ",
    ),
    "a missing block": (
        lambda values: without(values, "program"),
        "a.json: program; got 'no such key'; expected an object; ",
    ),
    "an unknown key": (
        lambda values: values["released"].update(more=1),
        "a.json: released: unknown key; got 'more'; expected one of releases, parameters, ",
    ),
    "a text for a count": (
        lambda values: values["released"].update(releases="3"),
        "a.json: released.releases; got '3'; expected a whole number; ",
    ),
    "a truth for a count": (
        lambda values: values["diagnostics"].update(diverged_round=True),
        "a.json: diagnostics.diverged_round; got True; expected a whole number or null; ",
    ),
    "null for a number": (
        lambda values: values["released"].update(upload_bytes_per_round=None),
        "a.json: released.upload_bytes_per_round; got None; expected a number; ",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_another_version_is_refused_in_one_line_that_says_what_to_do(change, tmp_path):
    alter, words = CHANGES[change]
    values = copy.deepcopy(to_json(RUN))
    alter(values)
    write_json(tmp_path / "a.json", values)
    with pytest.raises(DataError) as caught:
        load(Record, tmp_path / "a.json")
    assert words in str(caught.value)
    assert str(caught.value).endswith("and run snakemake again")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_object_is_refused():
    with pytest.raises(DataError, match=r"a\.json; got \[1\]; expected an object"):
        from_json(Record, [1], "a.json")


def test_a_plan_that_cannot_be_names_its_file():
    values = to_json(PLANNED)
    values["plan"]["rounds"] = 0
    with pytest.raises(PrivacyError, match=r"^a\.json: privacy plan\.rounds; got 0"):
        from_json(Planned, values, "a.json")


def test_training_reads_the_plan_of_a_file_whatever_its_ledger_says(tmp_path):
    write_json(tmp_path / "a.json", {"plan": dataclasses.asdict(PLAN), "ledger": "of tomorrow"})
    assert plans.read(tmp_path / "a.json") == PLAN
    other = {"plan": {"rounds": 3}}
    for content, words in (({}, ": plan"), (other, ": plan"), ([], " cannot be read; got 'list'")):
        write_json(tmp_path / "a.json", content)
        with pytest.raises(PflpipeError, match=rf"a\.json{words}") as caught:
            plans.read(tmp_path / "a.json")
        assert "\n" not in str(caught.value)
