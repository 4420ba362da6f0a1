"""Features of items' texts: the network against PyTorch's own layers, and the step that makes them
of a table of people and items."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pflpipe.cells import Features
from pflpipe.data import datasets, extraction, features, minilm
from pflpipe.errors import ConfigError, DataError

LINES = [f"statement {number} says {number % 7}" for number in range(20)]


def test_the_network_is_bert_and_the_mean_of_its_tokens():
    torch.manual_seed(0)
    width, tokens, layers = 24, 7, 2
    sizes = {"word": 50, "position": 16, "token_type": 2}
    found = {name: torch.randn(rows, width) for name, rows in sizes.items()}
    weights = {f"embeddings.{name}_embeddings.weight": value for name, value in found.items()}
    numbers = torch.randint(0, 50, (tokens,))
    x = found["word"][numbers] + found["position"][:tokens] + found["token_type"][0]

    def keep(name, module):
        for part, value in module.named_parameters():
            weights[f"{name}.{part}"] = value.detach()

    def scattered(module):
        for value in module.parameters():
            nn.init.normal_(value, std=0.3)
        return module

    first = scattered(nn.LayerNorm(width, eps=1e-12))
    keep("embeddings.LayerNorm", first)
    x = first(x)
    for number in range(layers):
        how = {"layer_norm_eps": 1e-12, "batch_first": True}
        layer = scattered(nn.TransformerEncoderLayer(width, 12, 40, 0.0, "gelu", **how))
        name = f"encoder.layer.{number}"
        rows = layer.self_attn.in_proj_weight.chunk(3), layer.self_attn.in_proj_bias.chunk(3)
        for part, weight, bias in zip(("query", "key", "value"), *rows, strict=True):
            weights[f"{name}.attention.self.{part}.weight"] = weight.detach()
            weights[f"{name}.attention.self.{part}.bias"] = bias.detach()
        keep(f"{name}.attention.output.dense", layer.self_attn.out_proj)
        keep(f"{name}.attention.output.LayerNorm", layer.norm1)
        keep(f"{name}.intermediate.dense", layer.linear1)
        keep(f"{name}.output.dense", layer.linear2)
        keep(f"{name}.output.LayerNorm", layer.norm2)
        x = layer(x[None])[0]
    mean = x.mean(0).detach()
    torch.testing.assert_close(minilm.vector(weights, numbers), mean / mean.norm())


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """20 items, answered by 12 people."""
    rows = np.arange(240)
    source = tmp_path / "source.npz"
    x = (rows % 20).astype(np.float32)[:, None]
    np.savez(source, train_images=x, train_labels=rows % 2, train_users=rows // 20, classes=2)
    datasets.prepare("asked", source, tmp_path, tmp_path / "asked.npz")
    return tmp_path / "asked.npz"


def block(folder: Path, lines: list[str]) -> Features:
    (folder / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    return Features("text", file=str(folder / "texts.txt"))


def made_up(texts, root):
    rng = np.random.default_rng(0)
    return rng.normal(size=(len(texts), 384)).astype(np.float32) + 5


def test_each_row_has_the_principal_components_of_its_items_text(answers, monkeypatch):
    monkeypatch.setattr(minilm, "encoded", made_up)
    wanted, target = block(answers.parent, LINES), answers.parent / "asked.text-0.npz"
    line = extraction.make(wanted, answers, target)
    assert line == "asked.text-0: 240 rows of 12 users, 2 classes, 16 features"
    assert features.shape(wanted, (1,)) == datasets.read_header(target).image_shape == (16,)
    raw, found = datasets.load_arrays(answers), datasets.load_arrays(target)
    vectors = made_up(LINES, None).astype(float)
    apart = vectors - vectors.mean(0)
    _, axes = np.linalg.eigh(apart.T @ apart)
    best = apart @ axes[:, ::-1][:, :16]
    products = best @ best.T / (np.square(best).sum() / 20)
    for part in ("train_images", "test_images"):
        items, x = getattr(raw, part)[:, 0].astype(int), getattr(found, part)
        np.testing.assert_allclose(x @ x.T, products[np.ix_(items, items)], atol=1e-5)
        each = x[[list(items).index(item) for item in set(items)]]
        loadings = apart[[*set(items)]].T @ each
        if len(set(items)) == len(LINES):  # a sign is nobody's choice
            assert (np.abs(loadings).max(0) == loadings.max(0)).all()
    again = answers.parent / "again.npz"
    extraction.make(wanted, answers, again)
    np.testing.assert_array_equal(datasets.load_arrays(again).train_images, found.train_images)


NO_FILE = r"features.file .*none.txt; got .*; expected a text with one line for each item"
REFUSED = [
    (LINES[:19], "texts.txt; got '19 lines'; expected at least 20, one for each item"),
    ([*LINES[:3], " ", *LINES[4:]], "texts.txt: line 4; got 'no text'; expected that of an item"),
]


@pytest.mark.parametrize(("lines", "message"), [*REFUSED, (None, NO_FILE)])
def test_texts_that_do_not_fit_the_items_are_refused_in_one_line(lines, message, answers):
    given = Features("text", file=str(answers.parent / "none.txt"))
    wanted = given if lines is None else block(answers.parent, lines)
    with pytest.raises(DataError, match=message) as refused:
        extraction.make(wanted, answers, answers.parent / "asked.text-0.npz")
    assert "\n" not in str(refused.value)


def test_only_items_have_texts(answers):
    with pytest.raises(ConfigError, match=r"features.kind text; got 'examples of shape \(8, 8"):
        features.shape(Features("text", file="x.txt"), (8, 8, 1))
    halves = answers.parent / "halves.npz"
    x = np.arange(240, dtype=np.float32)[:, None] / 2
    np.savez(answers.parent / "s.npz", train_images=x, train_labels=np.arange(240) % 2, classes=2)
    datasets.prepare("halves", answers.parent / "s.npz", answers.parent, halves)
    with pytest.raises(DataError, match="got 'examples that are numbers'; expected indices"):
        extraction.make(block(answers.parent, LINES), halves, answers.parent / "a.npz")


def test_without_the_package_of_the_tokens_the_step_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="needs the package tokenizers; pip install tokenizers"):
        minilm.encoded(["a"], tmp_path)
