"""Studies expand to the right cells, each once, with one spelling; and nothing that cannot be run
gets through."""

import contextlib
import copy
import dataclasses
import functools
import json
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import generated
import malformed
import tabled
from pflpipe import cells, options
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.methods import registry
from pflpipe.methods.registry import NAMES
from pflpipe.study import config, documents
from pflpipe.study.check import validate
from pflpipe.study.config import Config
from pflpipe.study.load import load_outline, load_study, study_names
from pflpipe.study.settings import flatten
from pflpipe.study.study_spec import Outline, Study

ROOT = Path(__file__).resolve().parents[1]
TABLES = tabled.table("test_config")
CIFAR, FEDSIM, TABLE_I = (TABLES[name] for name in ("CIFAR", "FEDSIM", "TABLE_I"))
"""Blocks of studies whose numbers are printed."""
SCOPED = [HealthCheck.function_scoped_fixture]
FAST = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SCOPED)


def ids(study: Study) -> set[str]:
    return {cell.id for cell in study.cells}


# The studies of the repository


@functools.cache
def outline(name: str) -> Outline:
    return load_outline(name, ROOT / "studies")


def test_the_default_config_builds_the_quickstart():
    assert config.load(ROOT / "config.yaml") == Config(studies=("quickstart",))


def test_quickstart_is_the_study_that_was_promised():
    study = outline("quickstart").everything
    assert len(study.methods) == 20
    assert set(study.methods) == {*NAMES} - {*TABLES["LEFT_OUT"], *TABLES["UNSEARCHED"]}
    assert len(study.cells) == 120
    assert {cell.privacy.epsilon for cell in study.cells} == {None, 2.0, 8.0}
    partition = Partition("dirichlet", 100, 0.3, min_size=6, test_fraction=0.2)
    for cell in study.cells:
        assert (cell.dataset, cell.partition) == ("digits", partition)
        assert cell.model == Model("mlp", (32,))
        assert (cell.training.rounds, cell.training.sample_rate) == (30, 1.0)
        assert cell.privacy.delta in (None, 0.001)
        assert cell.official_code == (cell.profile == "paper")
    for method in study.methods:
        assert {cell.seed for cell in study.cells if cell.method == method} == {0, 1, 2}


def test_published_versions_of_the_quickstart_stand_beside_its_own_runs():
    quickstart = {cell.id for cell in outline("quickstart").everything.cells}
    study = outline("quickstart_published").everything
    departing = {
        name
        for name in outline("quickstart").everything.methods
        if (about := registry.info(name).about).private
        and about.paper_departures + about.official_departures
    }
    assert set(study.methods) == departing
    for method in departing:
        about = registry.info(method).about
        strict, published = (
            [c for c in study.cells if (c.method, c.profile) == (method, p)]
            for p in ("strict", "paper")
        )
        assert len(strict) == len(published) == 6
        assert {cell.id for cell in strict} <= quickstart
        assert all(cell.official_code == bool(about.official_departures) for cell in published)
        clip_norms, others = ({cell.privacy.clip_norm for cell in c} for c in (strict, published))
        assert clip_norms == others


@pytest.mark.slow
def test_hyper_parameters_are_searched_on_other_seeds_and_the_same_task():
    quickstart, search = outline("quickstart").everything, outline("quickstart_search").search
    assert {cell.seed for cell in search.cells}.isdisjoint(cell.seed for cell in quickstart.cells)

    def task(cell: Cell):
        partition = dataclasses.replace(cell.partition, validation_fraction=0)
        return cell.dataset, partition, cell.model, cell.training.rounds

    assert len({task(cell) for study in (quickstart, search) for cell in study.cells}) == 1
    assert all(cell.partition.validation_fraction > 0 for cell in search.cells)


def test_the_quickstarts_methods_are_searched_with_equal_effort():
    quickstart = outline("quickstart").everything
    lines = outline("quickstart_search").searched
    assert [line.method for line in lines] == list(quickstart.methods)
    assert {len(line.candidates) for line in lines} == {16 + 16}
    for line in lines:
        assert "training.lr" in line.searched
        private = line.candidates[0].rows[0].cell.privacy.clip_norm is not None
        assert ("privacy.clip_norm" in line.searched) == private


def test_the_quickstart_uses_candidates_of_its_search():
    quickstart = outline("quickstart").everything

    def values(cell: Cell):
        privacy = dataclasses.replace(cell.privacy, epsilon=None)
        # What is tested by round changes nothing that is trained.
        training = dataclasses.replace(cell.training, evaluate_every=0, evaluate_clients=0)
        return cell.method, json.dumps(cell.hyperparameters), training, privacy

    searched = {values(cell) for cell in outline("quickstart_search").search.cells}
    for cell in quickstart.cells:
        assert cell.official_code or values(cell) in searched


def test_feddpa_table_2_carries_the_printed_numbers():
    study = outline("feddpa_table2").everything
    found = {
        (row.cell.method, row.cell.partition.kind, row.cell.partition.alpha): row.paper_value
        for row in study.rows
        if not row.variant
    }
    printed = [found["dp_fedavg", "dirichlet", alpha] for alpha in (1.0, 10.0, 100.0)]
    printed += [found[name, "iid", None] for name in ("dp_fedavg", "feddpa", "local_only")]
    assert printed == [42.61, 58.89, 60.03, 60.97, 61.55, None]
    for row in study.rows:
        assert row.paper_metric == (None if row.paper_value is None else "personal_common")
        assert row.cell.partition.validation_fraction == 0


# Expansion


EXPANSIONS = tabled.table("expansions")


@pytest.mark.parametrize("case", EXPANSIONS)
def test_a_study_expands_to_these_runs(load, case):
    changes, paths, runs = EXPANSIONS[case].values()
    rows = load(**changes).rows
    found = [{"variant": row.variant, **dict(flatten(row.cell.to_dict()))} for row in rows]
    values = [[one.get(path) for path in paths] for one in found]
    assert json.loads(json.dumps(values)) == runs


def test_a_study_may_declare_departures_for_any_private_method(load):
    declared = ["sample_level_calibration", "noise_over_all_clients"]
    privacy = {"epsilon": 8, "delta": 0.001, "clip_norm": 0.5, "departures": declared}
    strict = {"name": "dp_fedavg", "variant": "strict", "profile": "strict"}
    methods = [{"name": name} for name in ("fedavg", "dp_fedavg", "dp_fedsim")]
    methods.append(strict | {"privacy": {"departures": []}})
    words = {"profile": "paper", "methods": methods, "seeds": [0]}
    words["training"] = malformed.STUDY["training"] | {"batch_size": 4}
    rows = load(privacy=privacy, **words).rows
    declaring = {(row.cell.method, row.variant): row.cell for row in rows}
    for row in load(**words).rows:
        cell = declaring[row.cell.method, row.variant]
        added = {*declared} if row.cell.method != "fedavg" and not row.variant else set()
        assert {*cell.departures} == {*row.cell.departures, *added}
        assert (cell.id == row.cell.id) == (not added)
    claims = [cell.claim for cell in declaring.values()]
    assert claims == ["none", "nominal", "nominal", "certified"]


@pytest.mark.slow
def test_noise_that_is_given_departs_in_no_calibration():
    cells = [cell for cell in outline("feddpa_table2").everything.cells if cell.official_code]
    assert {cell.departures for cell in cells} == {("data_size_weights", "update_against_global")}


def test_editing_one_hyper_parameter_changes_the_ids_of_that_method_only(load):
    edited = {"name": "feddpa", "hyperparameters": {"tau": 0.31}}
    before, after = load(), load(methods=[*malformed.STUDY["methods"][:2], edited])
    assert {cell.method for cell in before.cells if cell.id not in ids(after)} == {"feddpa"}
    for shared in ("plan_id", "partition_id"):
        kept = {getattr(cell, shared) for cell in before.cells}
        assert kept == {getattr(cell, shared) for cell in after.cells}


@pytest.mark.parametrize(("words", "other"), TABLES["SAME"].values(), ids=TABLES["SAME"])
def test_studies_that_say_the_same_in_other_words_have_the_same_cells(load, words, other):
    assert ids(load(**words)) == ids(load(**other))


def test_float32_is_the_precision_unless_another_is_asked_for(load):
    one = {"methods": [{"name": "fedavg"}], "seeds": [0]}
    found = load(axes={"training.precision": ["float32", "tf32", "bf16"]}, **one).cells
    assert [cell.training.precision for cell in found] == ["float32", "tf32", "bf16"]
    assert len({cell.id for cell in found}) == 3, "runs of different numbers have different names"
    assert len({(cell.plan_id, cell.partition_id) for cell in found}) == 1
    assert load(**one).cells[0].id == found[0].id


PRINTED = TABLES["PRINTED"]


@pytest.mark.parametrize("case", PRINTED)
def test_the_rows_of_a_papers_own_mechanism_alone_carry_its_printed_numbers(load, case):
    methods, numbers = PRINTED[case]
    own = {one["name"] for one in methods if "variant" not in one}
    names = {name: title for name, title in TABLES["IN_TABLE_I"].items() if name in own}
    study = load(**FEDSIM, methods=methods, seeds=[0], paper=TABLE_I | {"methods": names})
    assert [row.paper_value for row in study.rows] == numbers


# Ids


@st.composite
def some_cells(draw):
    epsilon = draw(st.none() | st.floats(0.01, 100))
    values = st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.text(max_size=5)
    clients, alpha = draw(st.integers(2, 1000)), draw(st.floats(0.01, 100))
    return Cell(
        dataset=draw(st.sampled_from(["digits", "cifar10"])),
        partition=Partition("dirichlet", clients, alpha=alpha),
        model=Model("mlp", tuple(draw(st.lists(st.integers(1, 99), max_size=3)))),
        training=Training(draw(st.integers(1, 99)), 1, 0, "sgd", draw(st.floats(1e-6, 10))),
        privacy=Privacy("gaussian", epsilon, None if epsilon is not None else 1.0, 0.001, 0.5),
        method="feddpa",
        hyperparameters=draw(st.dictionaries(st.text(max_size=5), values, max_size=4)),
        departures=tuple(draw(st.lists(st.sampled_from(["a", "data_size_weights"]), unique=True))),
        seed=draw(st.integers(0, 2**40)),
    )


@given(some_cells())
@FAST
def test_a_cell_survives_json(cell):
    again = Cell.from_dict(json.loads(json.dumps(cell.to_dict())))
    assert again == cell
    for name in ("id", "partition_id", "plan_id"):
        assert getattr(again, name) == getattr(cell, name)


@pytest.mark.slow
@given(some_cells(), st.randoms(use_true_random=False))
@FAST
def test_an_id_does_not_depend_on_the_order_of_keys(cell, random):
    def shuffled(value):
        if not isinstance(value, dict):
            return value
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}

    assert Cell.from_dict(shuffled(cell.to_dict())).id == cell.id


@given(some_cells())
@FAST
def test_an_id_is_a_safe_file_name_and_says_what_it_is(cell):
    assert set(cell.id) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-")
    assert cell.dataset in cell.id
    assert f"seed{cell.seed}-" in cell.id


# Strictness


FULL = malformed.STUDY | tabled.table("full_study") | {"paper": malformed.PAPER}
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
ANYTHING = st.recursive(
    PLAIN | st.sampled_from(["dirichlet", "feddpa", "privacy.epsilon"]),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=4), part, max_size=3)
    ),
    max_leaves=5,
)


@contextlib.contextmanager
def refusals_are_one_line():
    """Let a PflpipeError of one line pass as an answer; any other exception is a bug."""
    errors: tuple[PflpipeError, ...] = ()
    try:
        yield
    except PflpipeError as refused:
        errors = refused.all
    assert not any("\n" in str(error) for error in errors)


@pytest.mark.slow
def test_an_unknown_key_is_refused_anywhere_and_in_one_line(load):
    places = generated.paths(FULL)
    mappings = [path for path in places if isinstance(generated.at(FULL, path), dict)]
    assert len(mappings) > 20
    for path in mappings:
        document = copy.deepcopy(FULL)
        value = [{}] if path[-1:] == ("axes",) else "local_only"
        generated.at(document, path)["x\n: \u2028"] = value
        with pytest.raises(ConfigError) as refused:
            load(**document)
        assert not any("\n" in str(error) for error in refused.value.all)


@pytest.mark.slow
@given(st.sampled_from([path for path in generated.paths(FULL) if path]), ANYTHING)
@settings(FAST, max_examples=50)
def test_whatever_stands_in_a_study_it_is_run_or_refused_in_one_line(load, path, value):
    document = copy.deepcopy(FULL)
    generated.at(document, path[:-1])[path[-1]] = value
    with refusals_are_one_line():
        assert load(**document).rows
        validate(config.parse({"studies": ["good"]}))


@pytest.mark.slow
@given(ANYTHING)
@FAST
def test_whatever_stands_in_config_yaml_it_is_accepted_or_refused_in_one_line(value):
    for key in options.schema(Config)["properties"]:
        with refusals_are_one_line():
            assert isinstance(config.parse({"studies": ["good"], key: value}), Config)


@pytest.mark.parametrize("key", ["results_dir", "data_dir"])
def test_a_folder_has_a_name(key):
    """And one that Snakemake and a shell read as it stands: malformed.yaml."""
    with pytest.raises(ConfigError, match=f"config.yaml: {key}; got .*without braces or a first ~"):
        config.parse({"studies": ["good"], key: ""})


CONFIG_SCHEMA = options.schema(Config)


def test_schemas_are_valid_json_schemas():
    for schema in (CONFIG_SCHEMA, documents.schema()):
        Draft202012Validator.check_schema(schema)


def test_defaults_written_in_the_schemas_are_those_of_a_file_that_leaves_them_out(load):
    def written(rules):
        return {key: rule["default"] for key, rule in rules.items() if "default" in rule}

    for name, kind in cells.BLOCKS.items():
        defaults = written(documents.schema()["$defs"][name]["properties"])
        given = dict.fromkeys(options.schema(kind)["required"], 1)
        assert options.build(kind, given) == options.build(kind, defaults | given)
    defaults = written(CONFIG_SCHEMA["properties"])
    assert len(defaults) == len(CONFIG_SCHEMA["properties"]) - 1
    assert config.parse({"studies": ["a"]}) == config.parse({"studies": ["a"], **defaults})


GOOD = {
    "partition": Partition("iid", 5),
    "model": Model("resnet20"),
    "training": Training(1, 1, 0, "sgd", 0.1),
    "privacy": Privacy("gaussian"),
    "server": cells.Server("adam"),
    "features": cells.Features("scattering", reference="mnist"),
}
VALUES = (None, -1, 0, 1, 2, 3, 1e-9, 0.5, 0.6, 0.999, 1.0, 1.5, -0.1, 0.0, float("nan"))
WORDS = ("", "x", "none", "iid", "natural", "adam", "rdp", "bf16", "laplace", "crop")


@pytest.mark.parametrize("path", [path for path in sorted(cells.OPTIONS) if "." in path])
def test_the_schema_and_the_check_of_a_block_accept_the_same_values(path):
    block, _, name = path.partition(".")
    rules = documents.schema()["$defs"][block]["properties"][name]
    types = rules.get("type", "string")
    python = {"integer": int, "number": int | float, "string": str}
    kinds = [python.get(word, ()) for word in ([types] if isinstance(types, str) else types)]
    for value in [*VALUES, *WORDS]:
        if not any(isinstance(value, kind) for kind in kinds):
            continue  # in Python, types are mypy's business
        try:
            options.check(dataclasses.replace(GOOD[block], **{name: value}), block)
            errors = []
        except ConfigError as refused:
            errors = [str(error) for error in refused.all if str(error).startswith(f"{path};")]
        fits = value == value and Draft202012Validator(rules).is_valid(value)
        # What stands for "not asked for" in Python is no word of a study.
        unspeakable = (path, value) in (("privacy.mechanism", "none"), ("partition.clients", 0))
        assert fits == (not errors and not unspeakable), value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1e-3", 1e-3), ("2E5", 2e5), ("-1.5e+2", -150.0), (".5e1", 5.0), ("1.0e-5", 1e-5)],
        *[("1e", "1e"), ("e5", "e5"), ("1e-3s", "1e-3s"), ("'1e-3'", "1e-3"), ("v1e3", "v1e3")],
        ("{a: &a {x: 1, y: 2}, b: {<<: *a, x: 3}}", {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}),
    ],
)
def test_numbers_have_exponents_texts_stay_and_merged_keys_are_overridden(tmp_path, text, value):
    (tmp_path / "a.yaml").write_text(f"x: {text}\n")
    assert documents.read_yaml(tmp_path / "a.yaml") == {"x": value}


@pytest.mark.parametrize("name", ["not good", "all", "a.b"])
def test_study_file_names_are_fit_for_targets(load, name):
    shutil.copy("studies/good.yaml", f"studies/{name}.yaml")
    with pytest.raises(ConfigError, match="file name"):
        load_study(name)


def test_a_study_asked_for_by_a_wrong_name_is_guessed(load):
    with pytest.raises(ConfigError, match="did you mean 'good'"):
        load_study("goood")


def test_the_folder_of_papers_holds_studies_of_the_same_kind(load):
    """And printed numbers match words without case and punctuation."""
    Path("studies/papers").mkdir()
    paper = {"paper": malformed.PAPER | {"match": TABLES["MATCHED"]}}
    malformed.write(Path("studies/papers/of_paper.yaml"), malformed.STUDY | CIFAR | paper)
    assert study_names() == ("good", "of_paper")
    assert {row.paper_value for row in load_study("of_paper").rows} == {None, 61.55}
    shutil.copy("studies/good.yaml", "studies/of_paper.yaml")
    with pytest.raises(ConfigError, match="study 'of_paper' has two files"):
        load_study("of_paper")


@pytest.mark.slow
def test_printed_numbers_that_were_edited_are_read_again(load):
    named = TABLE_I | {"methods": {"dp_fedavg": "DP-FedAvg"}}
    words = {**FEDSIM, "methods": [{"name": "dp_fedavg"}], "seeds": [0], "paper": named}
    assert [row.paper_value for row in load(**words).rows] == [85.28]
    malformed.text("85.28", "12.5", "studies/paper_results.yaml")(Path())
    assert [row.paper_value for row in load(**words).rows] == [12.5]


def test_every_printed_accuracy_is_a_percentage():
    rows = documents.read_yaml(ROOT / "studies/paper_results.yaml")["results"]
    assert len(rows) == 263
    assert all(0 < row["accuracy"] < 100 for row in rows)


@pytest.mark.docs
def test_the_study_explained_in_the_readme_can_be_run(load):
    blocks = (ROOT / "studies/README.md").read_text().split("```yaml\n")[1:]
    study, paper, search, drawn, private = (yaml.safe_load(one.split("```")[0]) for one in blocks)
    assert load(**study).methods == ("dp_fedavg", "feddpa")
    rows = load(**{**study, **CIFAR, "axes": {}, **paper}).rows
    printed = {row.variant or row.cell.method: row.paper_value for row in rows}
    assert printed == {"dp_fedavg": 60.97, "feddpa": 61.55, "without DFP": None}
    load(**{**study, **search})
    assert str(load_outline("good")).startswith("24 cells after a search of 48, ")
    load(**{**study, **drawn})
    assert str(load_outline("good")).startswith("24 cells after a search of 512, ")
    load(**{**study, **drawn, "search": drawn["search"] | private["search"]})
    assert load_outline("good").private_search.trials == 8


def test_processes_may_share_all_gpus():
    """And not one of them (malformed.yaml)."""
    assert config.parse({"studies": ["a"], "processes": 2, "device": "cuda"}).processes == 2
