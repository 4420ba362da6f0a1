"""An option is declared once: schema, checks, defaults and headings follow from its field."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from jsonschema import Draft202012Validator

import tabled
from pflpipe import cells, options
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.errors import ConfigError
from pflpipe.learning import augment
from pflpipe.options import Option
from pflpipe.study import settings
from pflpipe.study.study_spec import Row, Study

TABLES = tabled.table("test_options")


@dataclass(frozen=True)
class Block:
    """Words for a schema."""

    kind: Annotated[str, Option(choices=("round", "square"))]
    """the kind"""
    corners: Annotated[int | None, Option(least=3, only=("kind", "square"), needed=True)] = None
    """how many"""
    share: Annotated[float, Option(above=0, below=1)] = 0.5
    """a part"""
    colours: Annotated[tuple[str, ...], Option(choices=("red", "blue"), distinct=True)] = ()
    """ink"""
    internal: int = 3


def test_a_field_makes_its_schema():
    assert options.schema(Block) == TABLES["SCHEMA"]
    Draft202012Validator.check_schema(options.schema(Block))


def test_values_of_a_file_have_one_spelling():
    built = options.build(Block, {"kind": "square", "corners": 4.0, "colours": ["red"]})
    assert built == Block("square", 4, colours=("red",))
    assert type(built.corners) is int
    assert type(options.build(Block, {"kind": "round", "share": 1}).share) is float


@pytest.mark.parametrize(("values", "messages"), TABLES["BLOCKS"])
def test_a_block_made_in_python_is_checked_by_the_same_field(values, messages):
    colours = {"colours": tuple(values["colours"])} if "colours" in values else {}
    block = Block(**(values | colours))
    if not messages:
        return options.check(block, "here")
    with pytest.raises(ConfigError) as refused:
        options.check(block, "here")
    assert [str(error) for error in refused.value.all] == messages


def test_every_option_of_a_study_says_what_it_is():
    for block in (Cell, *cells.BLOCKS.values()):
        for name in options.declared(block):
            assert options.schema(block)["properties"][name]["description"]
    assert cells.OPTIONS.keys() >= {"dataset", "partition.kind", "training.lr", "privacy.epsilon"}
    assert cells.OPTIONS.keys() >= settings._WORDS.keys()
    for path in cells.OPTIONS:
        assert settings.words(path).phrase.count("{}") == bool(settings.words(path).phrase)


def test_the_transforms_that_may_be_asked_for_are_those_that_exist():
    assert cells.OPTIONS["training.augment"].option.choices == tuple(augment._TRANSFORMS)


@dataclass(frozen=True)
class WiderModel(Model):
    """A network with an option that no other file has heard of."""

    dropout: Annotated[float, Option(least=0, below=1)] = 0.0
    """of the hidden layers"""


def cell(model: Model) -> Cell:
    training = Training(1, 1, 0, "sgd", 0.1)
    return Cell("digits", Partition("iid", 2), model, training, Privacy(), "fedavg")


def test_a_model_is_named_by_what_is_not_its_default():
    assert settings.model_name(cell(Model("mlp", (8, 4)))) == "mlp-8-4"
    wide = Model("cnn_femnist", relu_everywhere=True)
    assert settings.model_name(cell(wide)) == "cnn_femnist-relu"


def test_an_option_with_a_default_needs_no_other_file():
    assert options.schema(WiderModel)["properties"]["dropout"]["default"] == 0.0
    blocks = ({"name": "mlp", "hidden": [4], "dropout": dropout} for dropout in (0.0, 0.5))
    rows = [Row(cell(options.build(WiderModel, block))) for block in blocks]
    (facet,) = {tuple(s.facet) for s in settings.layout(Study("s", "", "", tuple(rows))).settings}
    assert facet == ("model",)
    assert settings.model_name(rows[1].cell) == "mlp-4-dropout 0.5"
    line = r"model\.dropout; got 1\.0; expected a number >= 0 and < 1"
    with pytest.raises(ConfigError, match=line):
        options.check(WiderModel("mlp", (4,), dropout=1.0), "model")
