"""A table of people, from its columns to a model that remembers them."""

import re
import types

import numpy as np
import pandas as pd
import pytest
import torch

import pflpipe
import tabled
from pflpipe.data.contract import RowsWarning
from pflpipe.errors import ConfigError, DataError

PATIENTS, ROWS = 60, 20
LAYOUT = {"user": "patient", "label": "y", "classes": ["well", "ill"]}
LAYOUT |= {"vocabularies": {"sex": ["f", "m"]}, "ranges": {"age": [20, 90]}}
BUDGET = pflpipe.Privacy(epsilon=8, delta=1e-3, clip_norm=0.5)
FEW = pflpipe.Training(rounds=4, local_epochs=2, batch_size=0, optimizer="sgd", lr=0.5)
LINEAR = {"model": "linear", "training": FEW, "device": "cpu"}


def hospital(first: int = 0, people: int = PATIENTS) -> pd.DataFrame:
    """A hospital's table: who is older than 55 is mostly ill."""
    rng = np.random.default_rng(first)
    count = people * ROWS
    ids = np.repeat([f"pat-{first + i:03}" for i in range(people)], ROWS)
    table = pd.DataFrame({"patient": ids, "age": rng.integers(20, 90, count)})
    table["sex"] = rng.choice(["f", "m"], count)
    table["y"] = np.where(table["age"] + rng.normal(0, 8, count) > 55, "ill", "well")
    return table.sample(frac=1, random_state=0, ignore_index=True)


@pytest.fixture(scope="module")
def result():
    clients = pflpipe.clients_of(hospital(), **LAYOUT)
    return pflpipe.train("dp_fedavg", clients, privacy=BUDGET, **LINEAR)


def test_a_hospitals_table_becomes_a_private_model_that_answers_in_its_words(result, tmp_path):
    """A notebook: nothing that ``clients_of`` got is given again."""
    assert result.ledger.claim == "certified"
    table = hospital()
    answers = result.predict(table)
    assert set(answers) == {"well", "ill"}
    right = answers == table["y"]
    assert right.mean() > 0.8
    turned = table[["sex", "age"]].assign(further=0)
    assert (result.predict(turned) == answers).all(), "by name, without people and labels"
    mine = result.personal("pat-003").predict(table)
    result.save(tmp_path, personal=True)
    assert {file.suffix for file in tmp_path.rglob("*.*")} == {".json", ".safetensors"}
    again = pflpipe.load(tmp_path)
    assert (again.predict(turned) == answers).all()
    assert (again.personal("pat-003").predict(table) == mine).all()
    assert again.encoder == result.encoder
    assert list(again.to_frame()["client"]) == [f"pat-{i:03}" for i in range(PATIENTS)]
    assert "pat-003" not in (tmp_path / "model.json").read_text(), "it may be published"
    (tmp_path / "diagnostics.json").unlink()
    public = pflpipe.load(tmp_path)
    assert (public.predict(turned) == answers).all()
    with pytest.raises(DataError, match=r"personal model; got 'pat-003'; .*personal=True"):
        public.personal("pat-003")


def test_a_personal_model_is_that_of_the_person_of_this_id(result):
    places = pflpipe.clients_of(hospital(), **LAYOUT)
    own = hospital()[hospital()["patient"] == "pat-007"]
    assert len(places[places.names.index("pat-007")][1]) == len(own)
    trained = result.simulation, result.progress, [places.names.index("pat-007")]
    ((_, params),) = pflpipe.simulation.evaluation.personal_models(*trained)
    found = result.personal("pat-007").params
    assert all(torch.equal(found[name], value) for name, value in params.items())


def test_new_people_are_scored_by_a_model_of_their_own_rows(result):
    rows = result.scores_of(hospital(first=200, people=3))
    assert [row["client"] for row in rows] == ["pat-200", "pat-201", "pat-202"]
    assert [row["train_size"] for row in rows] == [16] * 3
    assert all(0 <= row["personal_new"] <= 100 for row in rows)
    again = result.scores_of(pflpipe.clients_of(hospital(first=200, people=3), **LAYOUT))
    assert again == rows
    with pytest.raises(DataError, match=r"examples; got \[2\]; expected \[3\]"):
        result.scores_of([(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))])


def test_people_who_took_part_are_no_new_people(result):
    with pytest.warns(RowsWarning, match="took part in training: their scores are none of new"):
        rows = result.scores_of(hospital(people=3))
    assert [row["client"] for row in rows] == ["pat-000", "pat-001", "pat-002"]


def test_a_folder_keeps_what_is_no_model(result, tmp_path):
    (tmp_path / "personal").mkdir()
    (tmp_path / "personal/notes.txt").write_text("mine")
    (tmp_path / "personal/99.safetensors").write_text("of an earlier model")
    result.save(tmp_path)
    assert [file.name for file in (tmp_path / "personal").iterdir()] == ["notes.txt"]
    (tmp_path / "diagnostics.json").write_text("[]")
    with pytest.raises(DataError, match=r"diagnostics.json cannot be read; got 'list'"):
        pflpipe.load(tmp_path)


def test_test_rows_of_a_table_go_to_the_person_of_their_id():
    table = hospital(people=6)
    whose = table["patient"]
    clients = pflpipe.clients_of(table[whose != "pat-003"], **LAYOUT)
    tests = pflpipe.clients_of(table[whose.isin(["pat-004", "pat-001"])], **LAYOUT)
    found = pflpipe.train("fedavg", clients, tests=tests, **LINEAR)
    own = {row["client"]: row["personal_own"] == row["personal_own"] for row in found.clients}
    assert [name for name in own if own[name]] == ["pat-001", "pat-004"]
    assert re.search(r"personal_own [\d.]+ of 2 of 5 clients, personal_common", repr(found))
    with pytest.raises(DataError, match=r"tests; got .1 people who are not in training.*scores_of"):
        pflpipe.train("fedavg", clients, tests=pflpipe.clients_of(table, **LAYOUT), **LINEAR)
    turned = pflpipe.clients_of(table[["sex", *table.columns.drop("sex")]], **LAYOUT)[:2]
    assert turned.names == ("pat-000", "pat-001")
    with pytest.raises(DataError, match="tests; got 'other columns"):
        pflpipe.train("fedavg", clients, tests=turned, **LINEAR)


def test_a_target_is_predicted_in_its_own_unit():
    shaken = np.random.default_rng(0).uniform(-0.5, 0.5, PATIENTS * ROWS)
    table = hospital().assign(weight=lambda rows: 50 + rows["age"] / 2 + shaken)
    layout = {"user": "patient", "target": "weight", "features": ["age"]}
    ranges = {"age": [20, 90], "weight": [40, 120]}
    clients = pflpipe.clients_of(table, ranges=ranges, **layout)
    longer = {"training": pflpipe.Training(40, 2, 0, "sgd", 0.3, loss="squared_error")}
    found = pflpipe.train("fedavg", clients, **(LINEAR | longer))
    error = np.abs(found.predict(table[["age"]]) - table["weight"])
    assert error.max() < 2


def test_columns_may_have_numbers_for_names_and_people_numbers_for_ids():
    table = pd.DataFrame({0: np.repeat([7, 10], 10), 1: np.linspace(-1, 1, 20), 2: [0, 1] * 10})
    table.loc[0, 1] = np.nan
    words = {"features": [1], "missing": {1: 0.5}, "ranges": {1: [-2, 2]}}
    clients = pflpipe.clients_of(table, user=0, label=2, classes=np.arange(2), **words)
    assert clients.names == ("10", "7")
    np.testing.assert_allclose(clients[1][0][:, 0], table[1][:10].fillna(0.5) / 2, rtol=1e-6)
    found = pflpipe.train("fedavg", clients, **LINEAR)
    assert set(found.predict(table)) <= {0, 1}
    assert found.personal(7).params.keys() == found.params.keys()


def told(table, features=None, form=None):
    """A table of another library, as Hugging Face's datasets describe one."""
    return types.SimpleNamespace(to_pandas=table.copy, features=features, format=form)


def test_a_column_that_names_its_classes_needs_no_others():
    numbers = hospital().assign(y=lambda rows: (rows["y"] == "ill").astype(int))
    named = types.SimpleNamespace(names=["well", "ill"])
    told_of = {"y": named, "later": named, "age": None}
    table = told(numbers.assign(later=numbers["y"]), told_of)
    layout = {key: value for key, value in LAYOUT.items() if key != "classes"}
    found = pflpipe.clients_of(table, features=["age", "sex"], **layout)
    assert len(found.encoder.examples(table)) == len(numbers)
    assert found.encoder.classes == ("well", "ill")
    for (_, y), (_, same) in zip(found, pflpipe.clients_of(hospital(), **LAYOUT), strict=True):
        assert np.array_equal(y, same)


def of(table=hospital, **layout):
    """The call of ``clients_of`` with a table that is made when it is called."""
    return lambda result: pflpipe.clients_of(table(), **(LAYOUT | layout))


IMAGE = np.ones((500, 500))
REFUSED = {
    "columns are missing": (
        lambda result: result.predict(hospital()[["age"]]),
        "columns are missing; got 'sex'; expected all of age, sex",
    ),
    "nobody of this id": (
        lambda result: result.personal("pat-99"),
        "personal: client; got 'pat-99'; expected one of 60 ids, such as 'pat-000'",
    ),
    "a place instead of an id": (lambda result: result.personal(3), "got 3; expected one of 60"),
    "other classes": (
        lambda result: pflpipe.train("fedavg", of()(result), classes=3, **LINEAR),
        "classes; got 3; expected 2, which clients_of got",
    ),
    "an image column": (of(lambda: hospital().assign(scan=[IMAGE] * 1200)), "column 'scan'"),
    "a set of classes": (of(classes={"well"}), "classes; got "),
    **{str(layout): (of(**layout), words) for layout, words in tabled.table("test_frames")},
    "an id that is the index": (
        of(lambda: hospital().set_index("patient")),
        r"no column 'patient'; it is the index: give table.reset_index\(\)",
    ),
    "a column alone": (of(lambda: told(hospital()["age"])), "expected a table, not a column"),
    "ragged rows": (
        lambda one: one.predict([[1.0], [2.0, 3.0]]),
        "x; got 'rows of several lengths'",
    ),
    "a file for a folder": (lambda result: result.save(__file__), "save: .*; got 'File exists'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_table_or_its_model_cannot_do_is_one_short_line(case, result):
    call, words = REFUSED[case]
    with pytest.raises((DataError, ConfigError), match=words) as caught:
        call(result)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_tests_that_are_training_rows_are_told_and_stay_told(result, tmp_path):
    clients = pflpipe.clients_of(hospital(), **LAYOUT)
    assert len(repr(result).splitlines()) == 3
    found = pflpipe.train("fedavg", clients, tests=clients, **LINEAR)
    assert "warning: the test rows are the training rows" in repr(found)
    found.save(tmp_path)
    assert pflpipe.load(tmp_path).ledger.warnings == found.contract.warnings


INAPPLICABLE = {"check_estimators_pickle": "a model is kept by save and load, without pickle"}
"""Check of scikit-learn -> why the classifier does not satisfy it."""
UNASKED = {"check_array_api_input": "asked only where SCIPY_ARRAY_API is set before scipy starts"}
"""Check of scikit-learn -> why it skips itself."""


@pytest.mark.slow
def test_the_classifier_keeps_the_conventions_of_scikit_learn():
    from sklearn.utils.estimator_checks import check_estimator

    asked = {"expected_failed_checks": INAPPLICABLE, "on_skip": None}
    short = pflpipe.Training(rounds=8, local_epochs=1, batch_size=0, optimizer="sgd", lr=2.0)
    found = check_estimator(pflpipe.FederatedClassifier(training=short), **asked)
    for status, known in (("xfail", INAPPLICABLE), ("skipped", UNASKED), ("failed", {})):
        assert {one["check_name"] for one in found if one["status"] == status} == {*known}
    assert sum(one["status"] == "passed" for one in found) > 50


def test_the_classifier_learns_from_a_table_of_people_in_private():
    table, names = hospital(), ["patient", "sex", "age"]
    columns = {"vocabularies": {"sex": ["f", "m"]}, "ranges": {"age": [20, 90]}}
    settings = {"training": FEW, "privacy": BUDGET, "columns": columns}
    learner = pflpipe.FederatedClassifier("dp_fedavg", user="patient", **settings)
    with pytest.raises(ConfigError, match="classes is missing; add classes="):
        learner.fit(table[names], table["y"])
    learner.set_params(classes=["well", "ill"]).fit(table[names], table["y"])
    assert learner.result_.ledger.claim == "certified"
    assert len(learner.result_.names) == PATIENTS
    assert learner.score(table[["age", "sex"]], table["y"]) > 0.8
    with pytest.raises(ConfigError, match="y; got 'no label in some rows'"):
        learner.fit(table[names], table["y"].replace("ill", None))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        learner.fit(table[names], table["y"][:5])
    with pytest.raises(ConfigError, match=r"y; got \['dead'\]; expected one of"):
        learner.fit(table[names], table["y"].replace("ill", "dead"))
