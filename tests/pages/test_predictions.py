"""Predictions beside outcomes: those that the studies' descriptions had before the runs."""

import re
from pathlib import Path

import pytest

from pages import predictions
from pflpipe.study import documents
from pflpipe.study.load import load_outline

STUDIES = Path(__file__).resolve().parents[2] / "studies"
COPIED = documents.read_yaml(predictions.FILE)
WORDS = {
    "local_only": "learning alone",
    "own_constant": "own constant",
    "released fedavg": "one model without privacy",
}
"""Line -> its words in a description; others have their names."""


@pytest.mark.parametrize("study", COPIED)
def test_every_prediction_stands_in_the_description_of_its_study(study):
    description = load_outline(study, STUDIES).study().description
    told = description.partition("Predicted before the runs")[2]
    for line, budgets in COPIED[study].items():
        _, found, rest = told.partition(WORDS.get(line, line))
        assert found, line
        # Up to the next line: "best at epsilon 8 private_prior, 75, at 2 74.5, at 0.5 73".
        others = (WORDS.get(other, other) for other in COPIED[study] if other != line)
        own = re.split("|".join(map(re.escape, others)), rest)[0]
        numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", own)}
        assert set(map(float, budgets.values())) <= numbers, line
