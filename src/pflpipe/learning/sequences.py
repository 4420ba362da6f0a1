"""Recurrent layers and attention in plain operations, for a module of the user (modules.py).

torch's fused kernels have no rule for vmap, and drop entries by the global generator. These layers
have the parameters of torch's and compute the same, step by step, as Opacus' DPLSTM does; their
masks come from the key of a training step. ``modules.adapt`` compares them with torch's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def adapt(layer: nn.Module, dropout: Callable[[float], nn.Module]) -> None:
    """Turn a layer of torch into one of this file, in place; others stay.

    Args:
        layer: such as ``nn.LSTM``, ``nn.GRU``, ``nn.RNN``, or ``nn.MultiheadAttention`` that adds
            no keys of its own.
        dropout: returns a layer that drops entries at this rate.
    """
    if isinstance(layer, nn.RNNBase) and type(layer) in (nn.LSTM, nn.GRU, nn.RNN):
        rates = [layer.dropout] * (layer.num_layers - 1)
        layer.drops = nn.ModuleList(dropout(rate) if rate else nn.Identity() for rate in rates)
        layer.__class__ = Recurrent
    elif type(layer) is nn.MultiheadAttention and layer.bias_k is None and not layer.add_zero_attn:
        layer.drop = dropout(layer.dropout) if layer.dropout else nn.Identity()
        layer.__class__ = Attention
    elif isinstance(layer, nn.TransformerEncoderLayer):
        layer.activation_relu_or_gelu = 0  # otherwise its evaluation is one fused kernel


class Recurrent(nn.RNNBase):
    """``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` with sequences of one length."""

    drops: nn.ModuleList

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Return outputs and last states, as the layer of torch does."""
        z = x if self.batch_first else x.transpose(0, 1)  # masks need the batch first
        starts = [hx] if isinstance(hx, Tensor) else hx
        ends: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in ("", "_reverse")[: 1 + self.bidirectional]:
                names = (f"{name}_l{layer}{direction}" for name in _WEIGHTS)
                weights = [getattr(self, name, None) for name in names]
                sizes = self.proj_size or self.hidden_size, self.hidden_size
                start = [z.new_zeros(len(z), size) for size in sizes[: 1 + (self.mode == "LSTM")]]
                if starts is not None:
                    start = [value[len(ends)] for value in starts]
                out, *end = steps(self.mode, z.flip(1) if direction else z, weights, *start)
                outputs.append(out.flip(1) if direction else out)
                ends.append(end)
            z = torch.cat(outputs, -1)
            if layer + 1 < self.num_layers:
                z = self.drops[layer](z)
        last = [torch.stack(values) for values in zip(*ends, strict=True)]
        z = z if self.batch_first else z.transpose(0, 1)
        return z, tuple(last) if self.mode == "LSTM" else last[0]


def steps(
    mode: str,
    x: Tensor,
    weights: Sequence[Tensor | None],
    hidden: Tensor,
    cell: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the outputs ``[B, T, H]`` of one recurrent layer, the last of them and, of an LSTM,
    the last cell.

    Args:
        mode: ``LSTM``, ``GRU``, ``RNN_TANH`` or ``RNN_RELU``.
        x: ``[B, T, D]``.
        weights: those of the inputs and of the hidden state, their biases, and the projection of an
            LSTM; None for what the layer lacks.
        hidden, cell: the states before the first step, ``[B, H]``.
    """
    w_in, w_hidden, b_in, b_hidden, projection = weights
    assert w_in is not None
    assert w_hidden is not None
    outputs = []
    for given in F.linear(x, w_in, b_in).unbind(1):
        own = F.linear(hidden, w_hidden, b_hidden)
        if cell is not None:
            enters, keeps, fresh, leaves = (given + own).chunk(4, -1)
            cell = keeps.sigmoid() * cell + enters.sigmoid() * fresh.tanh()
            hidden = leaves.sigmoid() * cell.tanh()
        elif mode == "GRU":
            reset, keep, fresh = given.chunk(3, -1)
            reset_own, keep_own, fresh_own = own.chunk(3, -1)
            fresh = (fresh + (reset + reset_own).sigmoid() * fresh_own).tanh()
            hidden = fresh + (keep + keep_own).sigmoid() * (hidden - fresh)
        else:
            hidden = (given + own).relu() if mode == "RNN_RELU" else (given + own).tanh()
        if projection is not None:
            hidden = F.linear(hidden, projection)
        outputs.append(hidden)
    return torch.stack(outputs, 1), hidden, *([] if cell is None else [cell])


class Attention(nn.MultiheadAttention):
    """``nn.MultiheadAttention`` with masks from the key of a step."""

    drop: nn.Module

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return outputs and weights, as the layer of torch does. ``is_causal`` is a hint about
        ``attn_mask``."""
        weights: Sequence[Tensor] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        joint = self.in_proj_bias
        biases = (None,) * 3 if joint is None else joint.chunk(3)
        parts = []
        for given, weight, bias in zip((query, key, value), weights, biases, strict=True):
            z = F.linear(given if self.batch_first else given.transpose(0, 1), weight, bias)
            parts.append(z.view(*z.shape[:2], self.num_heads, self.head_dim).transpose(1, 2))
        q, k, v = parts
        scores = q @ k.mT / math.sqrt(self.head_dim)  # [B, heads, T, S]
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.view(scores.shape)
        padding = None if key_padding_mask is None else key_padding_mask[:, None, None]
        for mask in (attn_mask, padding):
            if mask is not None:
                hidden = mask.dtype == torch.bool
                scores = scores.masked_fill(mask, -math.inf) if hidden else scores + mask
        shares = self.drop(scores.softmax(-1))
        z = self.out_proj((shares @ v).transpose(1, 2).flatten(2))
        shown = shares.mean(1) if average_attn_weights else shares
        return z if self.batch_first else z.transpose(0, 1), shown if need_weights else None
