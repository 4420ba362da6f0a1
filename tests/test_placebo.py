"""Placebo: a private run of which the release is the noise alone, a control that competes with
nobody."""

import dataclasses

import pytest
import torch
import yaml

import fake_results
import malformed
from pflpipe.errors import ConfigError
from pflpipe.report import comparison, sentences, tables, verdicts
from pflpipe.report.tidy import tidy
from pflpipe.simulation import rounds
from pflpipe.study.load import load_outline
from simulations import plan, simulation, spied


def test_a_placebo_releases_the_noise_of_its_plan_and_nobodys_update():
    quiet = plan(noise_multiplier=1e-3)
    normal, control = (simulation("fedrep", plan=quiet, placebo=on) for on in (False, True))
    done, seen, _ = spied(control)
    assert all(not value.any() for uploads, *_ in seen for value in uploads.update.values())
    assert len(seen) == quiet.rounds == done.residuals.releases
    assert done.residuals.mismatches == 0 < done.residuals.coordinates
    start = rounds.start(control).params
    noise = quiet.clip_norm * quiet.noise_multiplier / quiet.clients
    for name in start:
        moved = (done.params[name] - start[name]).abs().max()
        assert moved < 6 * noise * quiet.rounds**0.5, "the shared part is as it started, but noise"
    learned = rounds.run(normal, rounds.start(normal)).params
    assert any((learned[name] - start[name]).abs().max() > 0.05 for name in start)


def test_who_sends_a_placebo_still_learns_at_home():
    control = simulation("fedrep", placebo=True)
    begun = rounds.start(control)
    before = {name: value.clone() for name, value in begun.states.of([0]).items()}
    after = rounds.run(control, begun).states.of([0])
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_placebo_is_a_line_of_the_table_and_neither_rival_nor_winner(tmp_path):
    """It has better numbers than all others, another placebo among them."""
    study = fake_results.study(methods=("local_only", "dp_fedavg", "dp_fedavg_fb"), epsilons=(2.0,))
    rows = list(study.rows)
    for row in study.rows:
        if row.cell.method != "local_only":
            training = dataclasses.replace(row.cell.training, placebo=True)
            cell = dataclasses.replace(row.cell, training=training)
            rows.append(dataclasses.replace(row, cell=cell, variant="placebo"))
    study = dataclasses.replace(study, rows=tuple(rows))
    results = fake_results.write(study, tmp_path)
    frame = tidy(study, results)
    control = (frame["variant"] == "placebo") & (frame["method"] == "dp_fedavg_fb")
    frame.loc[control, "personal_own"] = [99.0, 99.1, 99.2]
    groups = comparison.groups(study, frame)
    control = comparison.find(groups, "dp_fedavg_fb (placebo)", "ε = 2")
    assert len(comparison.of_claim(groups, "placebo")) == 2
    assert comparison.epsilon_text(control) == "2", "that of the mechanism, which holds"
    table = tables.shown(study, frame, results)[0]
    (line,) = (row for part in table.sections for row in part if row[0].text == control.label)
    assert line[1].text == "placebo"
    assert not any(entry.bold for entry in line)
    assert any(note.startswith("Placebo: ") for note in table.notes)
    judged = sentences.judged(groups)["ε = 2"]
    assert judged == verdicts.judge([one for one in groups if one.claim != "placebo"])
    told = list(sentences.of_study(study, frame))
    assert sum("With the noise alone and nobody's update, at ε = 2, " in one for one in told) == 1
    assert not any("99" in one for one in told), "nobody calls its mean the highest"


def written(tmp_path, **entry):
    study = yaml.safe_load((malformed.ROOT / "docs/examples/easgd.yaml").read_text())
    control = {"variant": "placebo", "training": {"placebo": True}}
    study["methods"] = [{"name": "dp_fedavg"}, {"name": "dp_fedavg"} | control | entry]
    study["search"] = {"seeds": [100], "validation_fraction": 0.2}
    study["search"]["values"] = {"training.lr": [0.1, 0.2]}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(study))
    return load_outline("ours", tmp_path)


def test_a_search_leaves_a_placebo_the_values_of_what_it_is_the_control_of(tmp_path):
    found = written(tmp_path)
    with_search = {line.entry.get("variant", ""): bool(line.searched) for line in found.lines}
    assert with_search == {"": True, "placebo": False}


def test_a_method_without_noise_has_no_placebo(tmp_path):
    with pytest.raises(ConfigError, match=r"training\.placebo of fedavg; got .no noise"):
        written(tmp_path, name="fedavg")
