"""Records: what is written is read back, and a file of another version is refused in one line."""

import copy
import dataclasses
import functools
import json
import math
import operator

import pytest

import tabled
from pflpipe.cells import Privacy
from pflpipe.errors import DataError, PflpipeError, PrivacyError
from pflpipe.files import write_json
from pflpipe.json_records import from_json, load, to_json
from pflpipe.privacy import plan as plans
from pflpipe.privacy.accounting import make_plan
from pflpipe.privacy.ledger import Planned, ledger
from pflpipe.privacy.run_check import Residuals
from pflpipe.simulation.run_record import Diagnostics, Program, Record, Sizes

CHANGES = tabled.table("test_records")

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


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_of_another_version_is_refused_in_one_line_that_says_what_to_do(name, tmp_path):
    change, values = CHANGES[name], copy.deepcopy(to_json(RUN))
    *outer, last = change["path"]
    block = functools.reduce(operator.getitem, outer, values)
    block.pop(last, None)
    if "value" in change:
        block[last] = change["value"]
    write_json(tmp_path / "a.json", values)
    with pytest.raises(DataError) as caught:
        load(Record, tmp_path / "a.json")
    assert f"a.json: {change['said']}" in str(caught.value)
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
