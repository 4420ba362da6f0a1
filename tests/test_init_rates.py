"""The rates in the template of ``pflpipe init``: those of the rule, which never sees the data set
that judges it."""

import re

import pytest

import init_rates
from pflpipe.study.init import TEMPLATE


def test_the_template_proposes_what_the_rule_makes_of_the_committed_searches():
    text = re.sub(r"\s*# ", " ", TEMPLATE.read_text(encoding="utf-8"))
    features, items = map(init_rates.proposed, ("features", "items"))
    assert "{lr:g} for rows with features".format(**features) in text
    assert "{lr:g} for embedding".format(**items) in text
    each = "lr: {fedrep_lr:g}, clip_norm: {fedrep_clip:g}, head_lr: {fedrep_head_lr:g}"
    assert f"{each} with features".format(**features) in text
    assert f"{each} times the answers of a person".format(**items) in text


@pytest.mark.parametrize("kind", init_rates.STUDIES)
def test_a_data_set_says_nothing_of_the_rates_that_are_judged_on_it(kind, monkeypatch):
    read = init_rates._of_study
    for left_out in init_rates.STUDIES[kind]:
        expected = init_rates.proposed(kind, left_out)

        def other(study, kind, left_out=left_out):
            return dict.fromkeys(init_rates.PATHS, 99.0) if study == left_out else read(study, kind)

        monkeypatch.setattr(init_rates, "_of_study", other)
        assert init_rates.proposed(kind, left_out) == expected
        assert init_rates.proposed(kind) != expected
        monkeypatch.setattr(init_rates, "_of_study", read)
