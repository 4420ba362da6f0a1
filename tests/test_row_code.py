"""One list of the parts of a row. Claim, key, ids, checkpoint, record, table and what is published
follow from it: a loss or a network of one's own is unreviewed, and other code is another run."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import fake_results
import tabled
import tracked
from pflpipe.cells import Cell, Model, Privacy
from pflpipe.code import dependencies, objects
from pflpipe.errors import ConfigError, DataError
from pflpipe.files import read_json, write_json
from pflpipe.json_records import load, to_json
from pflpipe.methods import registry, row_code
from pflpipe.methods.base import Method, Upload
from pflpipe.pipeline import released
from pflpipe.privacy import plan as plans
from pflpipe.report import sentences, tables, tidy
from pflpipe.simulation import runs
from pflpipe.study.plans import plan_of
from pflpipe.study.study_spec import Study
from test_api import LOCAL, clients, federation, train
from test_runs import inputs_of, make_place, simulated, train_here

TABLES = tabled.table("test_row_code")


@pytest.fixture(autouse=True)
def folder(here: Path) -> Path:
    """The working directory, with a loss and a network of one's own."""
    write_loss()
    Path("net.py").write_text(TABLES["NET"].format(layer="ReLU"))
    return here


def write_loss(factor: float = 1.0, comment: str = "") -> None:
    Path("loss.py").write_text(comment + TABLES["LOSS"].format(factor=factor))


def cell_with(loss="loss.py:own", model=None, base=fake_results.BASE) -> Cell:
    training = replace(base.training, loss=loss)
    return row_code.with_digests(replace(base, training=training, model=model or base.model))


ONCE = replace(LOCAL, rounds=1)
WITH_LOSS = {"training": replace(ONCE, loss="loss.py:own")}
OWN = {"loss": WITH_LOSS, "network": {"model": Model("net.py:net")}}


# ---------------------------------------------------------------- the claim


@pytest.mark.parametrize("kind", OWN)
def test_a_loss_or_a_network_from_a_file_is_unreviewed_and_its_digest_is_in_the_list(kind):
    result = train(**OWN[kind])
    (part,) = result.simulation.code
    name = {"loss": "loss.py:own", "network": "net.py:net"}[kind]
    assert (part.kind, part.name, part.package, part.touches) == (kind, name, False, "messages")
    assert len(bytes.fromhex(part.sha256)) == 32
    assert result.ledger.claim == "unreviewed"
    assert not result.simulation.reviewed
    (warning,) = [text for text in result.ledger.warnings if "have not reviewed" in text]
    assert f"the {kind} {name}: its epsilons hold only if" in warning


class Net(nn.Module):
    """A network in the program that calls."""

    def __init__(self, image_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(*image_shape, 3)
        self.last = nn.Linear(3, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(x).relu())


def test_the_claim_of_a_cell_follows_from_every_part_that_touches_messages():
    assert cell_with("cross_entropy").claim == "certified"
    assert cell_with().claim == "unreviewed"
    assert cell_with("cross_entropy", Model("net.py:net")).claim == "unreviewed"
    started = replace(fake_results.BASE, model=Model("mlp", (4,), init="start.safetensors"))
    assert started.claim == "certified", "numbers keep nothing for a later call"


def test_the_list_of_a_cell_has_every_kind_and_says_whose_each_part_is():
    cell = cell_with()
    cell = replace(cell, training=replace(cell.training, augment=("flip",)))
    Path("score.py").write_text(TABLES["METRIC"])
    data = dependencies.Dependency.of("data", "my.py:load", "0" * 64)
    found = row_code.of_cell(cell, [data], ["accuracy", "score.py:mine"])
    parts = [[part.kind, part.name, part.package] for part in found]
    assert parts == [["method", cell.method, True], *TABLES["PARTS"]]
    assert {part.touches for part in found} == {"messages", "rows", "scores"}
    assert all(len(part.sha256) == 64 for part in found)
    assert to_json(found[0]).keys() == {"kind", "name", "sha256", "package", "touches"}
    assert dependencies.unreviewed(found) == (found[1],), "rows and scores keep the claim"


# ---------------------------------------------------------------- ids, keys and checkpoints


def test_other_code_of_a_loss_is_another_run_and_a_comment_is_not():
    first = cell_with()
    write_loss(comment="# said otherwise\n")
    same = cell_with()
    write_loss(factor=2.0)
    other = cell_with()
    for name in (registry.key, registry.run_id, lambda c: c.id, lambda c: c.plan_id):
        assert name(first) == name(same) != name(other)


def test_a_helper_beside_the_loss_counts_too():
    Path("loss.py").write_text("import helper\n" + TABLES["LOSS"].format(factor=1.0))
    Path("helper.py").write_text("FACTOR = 1\n")
    first = cell_with()
    Path("helper.py").write_text("FACTOR = 2\n")
    assert registry.key(cell_with()) != registry.key(first)


@pytest.mark.parametrize("kind", OWN)
def test_calls_with_one_secret_and_another_file_share_no_noise(kind):
    first = federation(secret="one", **OWN[kind])
    write_loss(factor=2.0)
    Path("net.py").write_text(TABLES["NET"].format(layer="Tanh"))
    second = federation(secret="one", **OWN[kind])
    assert first.key != second.key


def test_a_network_that_reads_its_start_from_another_file_has_noise_of_its_own():
    """Nothing of this is in the file of the network."""
    text = TABLES["NET"].format(layer="ReLU").replace("    return ", "    made = ")
    text += "    made[0].bias.data.fill_(float(open('start.txt').read()))\n    return made\n"
    Path("net.py").write_text(text)
    keys = set()
    for value in ("0.5", "0.75", "0.5"):
        Path("start.txt").write_text(value)
        keys.add(federation(secret="one", model=Model("net.py:net")).key)
    assert len(keys) == 2


@pytest.fixture
def cell() -> Cell:
    """A cell with its own loss, whose run has its files here."""
    return cell_with(base=make_place(Path(), "dp_fedavg"))


def test_a_run_records_the_code_it_was_trained_with_and_its_checkpoint_depends_on_it(cell):
    train_here(Path(), cell)
    record = load(runs.Record, Path("run/run.json"))
    assert record.dependencies == cell.outside
    assert record.dependencies[0].sha256 == cell.digests["loss"]
    simulation = simulated(Path(), cell)
    other = (replace(simulation.code[0], sha256="0" * 64),)
    changed = replace(simulation, code=other)
    inputs = inputs_of(Path())
    found = [runs._fingerprint(cell, inputs, one, "") for one in (simulation, changed)]
    assert found[0] != found[1]


def test_a_job_whose_loss_was_edited_after_it_was_planned_ends_in_one_line(cell):
    write_loss(factor=2.0)
    with pytest.raises(ConfigError, match=r"code of loss loss\.py:own; got 'other code") as caught:
        train_here(Path(), cell)
    assert "\n" not in str(caught.value)


def test_a_run_that_was_trained_with_other_code_is_no_run_of_a_cell(cell):
    train_here(Path(), cell)
    out, plan = Path("run"), plans.read(Path("plan.json"))
    assert tidy.record_of(out, plan, cell).dependencies == cell.outside
    record = read_json(out / "run.json")
    for code in ([], [record["code"][0] | {"sha256": "0" * 64}]):
        write_json(out / "run.json", record | {"code": code})
        with pytest.raises(DataError, match=r"run\.json: code of loss; .*expected loss\.py:own"):
            tidy.record_of(out, plan, cell)


# ---------------------------------------------------------------- objects of the program


def test_two_modules_of_one_class_share_no_noise_whatever_they_are_called():
    """Training in phases: the second starts with other weights. The difference of two releases with
    independent noise is sqrt(2) as wide as one; of n = 2,603 numbers its spread is 1.4 %."""
    shards, wide = [(x[:, :3], y % 2) for x, y in clients(3)], 500
    shape = {"training": ONCE, "classes": 2, "secret": "one", "model_name": "net"}
    privacy = Privacy(noise_multiplier=50.0, delta=1e-3, clip_norm=1.0)

    def release(scale: float) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, wide), nn.ReLU(), nn.Linear(wide, 2))
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(scale)
        before = torch.cat([value.flatten() for value in model.parameters()]).detach()
        result = train(shards=shards, model=model, privacy=privacy, **shape)
        names = ("0.weight", "0.bias", "head.weight", "head.bias")
        return torch.cat([result.params[name].flatten() for name in names]) - before

    one, again, other = release(1.0), release(1.0), release(1.001)
    assert torch.equal(one, again)
    assert abs(float((one - other).std() / one.std()) - 2**0.5) < 0.1


def local_update(params, server, state, batches, task):
    """A hook of the program's own."""
    after, loss = task.minimize(params, batches.train, task.loss)
    return Upload({name: FACTOR * (after[name] - params[name]) for name in params}, loss), state


FACTOR = 1.0


def test_the_code_of_hooks_and_what_they_name_is_in_the_key(monkeypatch):
    keys = []
    for factor in (1.0, 0.5, 1.0):
        monkeypatch.setattr(f"{__name__}.FACTOR", factor)
        keys.append(federation(Method(local_update), secret="one").key)
    assert keys[0] == keys[2] != keys[1]


def closure(factor: float) -> Method:
    def scaled(*given):
        upload, state = local_update(*given)
        return replace(upload, update={n: factor * v for n, v in upload.update.items()}), state

    return Method(scaled)


def test_what_cannot_be_known_needs_a_name_which_stands_for_one_object():
    def key(factor: float, **name: str) -> str:
        return federation(closure(factor), secret="one", **name).key

    first = key(1.0, method_name="closure")
    assert key(1.0, method_name="closure") == first
    with pytest.raises(ConfigError, match="method_name; got \"'closure', which stands for other"):
        key(0.5, method_name="closure")
    assert key(0.5, method_name="half") != first


def test_a_function_of_the_package_that_keeps_a_setting_is_no_name_alone():
    half, whole = (objects.known(registry.info("fedprox").factory(weight=w)) for w in (0.5, 1.0))
    assert half.code != whole.code
    assert not half.complete


def test_arrays_around_a_function_are_not_read_for_they_may_be_a_clients():
    data = torch.arange(6.0)

    def hook(params: Any) -> Any:
        return data

    before = objects.known(hook)
    data.add_(1)
    assert objects.known(hook) == before
    assert not before.complete


KNOWN = [Net, Net((3,), 2), local_update, Method(local_update), nn.GRU(2, 3)]


@pytest.mark.parametrize("value", [*KNOWN, functools.partial(Net)], ids=type)
def test_what_can_be_known_is_known_and_the_same_each_time(value):
    first = objects.known(value)
    assert first.complete
    assert objects.known(value) == first


# ---------------------------------------------------------------- tables and what is published


@pytest.fixture
def study() -> Study:
    """Certified rows and rows of the same method with a loss from outside."""
    made = fake_results.study(methods=("local_only", "dp_fedavg", "feddpa"))
    rows = []
    for row in made.rows:
        if row.cell.method == "feddpa":
            row = replace(row, cell=cell_with(base=row.cell), variant="own loss")
        rows.append(row)
    return replace(made, rows=tuple(rows))


def test_a_row_with_a_loss_from_outside_is_unreviewed_wherever_it_is_shown(study, folder):
    results = fake_results.write(study, folder / "tree")
    table = results / "tables/tiny.csv"
    tables.write_study(study, results, table)
    frame = pd.read_csv(table)
    own = frame["method"] == "feddpa"
    assert set(frame.loc[own, "claim"]) == {"unreviewed"}
    assert set(frame.loc[own, "unreviewed_code"]) == {"loss loss.py:own"}
    assert frame.loc[~own, "unreviewed_code"].isna().all()
    text = (results / "tables/tiny.md").read_text().replace("\\_", "_")
    assert "Not pflpipe's own code (feddpa" in text
    for cell in study.cells:
        assert (released.left_out(cell) == "") == (cell.claim == "certified")
        if cell.method == "feddpa":
            assert released.left_out(cell).endswith("have not reviewed loss loss.py:own")
    for run in tracked.runs_of(study, results):
        if run.tags.get("method") == "feddpa":
            assert run.tags["claim"] == "unreviewed"
            assert run.tags["unreviewed_code"] == "loss loss.py:own"
    said = " ".join(sentences.of_study(study, tidy.stored(study, results)))
    assert "certified personal models (feddpa" not in said


def test_code_that_touches_only_rows_or_scores_is_named_and_keeps_the_claim(folder):
    made = fake_results.study(methods=("local_only", "dp_fedavg"))
    Path("score.py").write_text(TABLES["METRIC"])
    metric = replace(made.metric, source="score.py:mine")
    study = replace(made, metrics=dict(made.metrics) | {"mine": metric})
    results = fake_results.write(made, folder / "tree")
    loader = to_json(dependencies.Dependency.of("data", "my.py:load", "0" * 64))
    for row in study.rows:
        file = results / "runs" / row.run / "run.json"
        write_json(file, read_json(file) | {"code": [loader]})
    for scores in (results / "scores/tiny").glob("*.csv"):
        columns = ("personal_own", "global_own", "personal_new", "global_new")
        mine = {f"mine_{column}": 1.0 for column in columns}
        pd.read_csv(scores).assign(**mine).to_csv(scores, index=False)
    frame = tidy.tidy(study, results)
    assert set(frame["unreviewed_code"]) == {"data my.py:load, metric score.py:mine"}
    assert set(frame["claim"]) == {"none", "certified"}


def test_the_ledger_names_the_function_that_made_the_rows():
    entry = plan_of(fake_results.BASE, loader=f"my.py:load {'0' * 64}").ledger
    assert entry.claim == "certified"
    assert any("have not reviewed the data my.py:load" in text for text in entry.warnings)
