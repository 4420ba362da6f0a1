"""Departures: steps of published mechanisms that the certified mechanism lacks, and what is known
of each before anything is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pflpipe.errors import PrivacyError, nearest

DEPARTURES: dict[str, str] = {
    "client_clip_weights": "each client chooses how its clip bound is divided over the layers",
    "clip_in_training": "gradients are clipped inside local training, the message itself is not",
    "data_dependent_clip": "clip thresholds are computed from the client's own update",
    "data_dependent_noise": "the noise scale is computed from private values",
    "data_size_weights": (
        "messages are averaged with weights proportional to the clients' numbers of examples"
    ),
    "divide_by_counts": "each coordinate is divided by the number of clients that sent it",
    "learning_rate_in_noise": (
        "the noise is scaled by twice the learning rate, which the bounded change has in it already"
    ),
    "no_composition": "the budget of one round is quoted as the budget of the whole run",
    "noise_not_divided": "each message carries the whole noise instead of its share",
    "noise_on_support": "noise only on the coordinates that a client's private mask keeps",
    "noise_over_all_clients": (
        "the noise is divided among all clients, although a fraction of them takes part in a round"
    ),
    "noise_per_participant": (
        "each drawn client adds a share of the noise, so its size follows the drawn count"
    ),
    "per_layer_clip_unscaled": (
        "each layer is clipped to C but the noise is scaled for one joint bound C"
    ),
    "per_tensor_clip": "each tensor is clipped to C but the noise is scaled for one joint bound C",
    "private_clamp": (
        "updates are clamped to bounds computed from private values instead of being clipped"
    ),
    "public_sampling": "which clients take part can be predicted, so sampling amplifies nothing",
    "raw_similarity_weights": "messages are weighted by similarities of models that carry no noise",
    "sample_level_calibration": (
        "the noise multiplier is calibrated for single examples of DP-SGD, not for clients"
    ),
    "update_against_global": (
        "the update is taken against the global model instead of the start of local work"
    ),
}
"""Steps of published methods that the certified mechanism lacks. A cell names them; its claim is
then at most ``nominal``."""

OF_MESSAGES = frozenset(
    {
        "client_clip_weights",
        "data_dependent_clip",
        "data_dependent_noise",
        "data_size_weights",
        "divide_by_counts",
        "noise_not_divided",
        "noise_on_support",
        "noise_per_participant",
        "private_clamp",
        "raw_similarity_weights",
    }
)
"""Departures under which every client's message carries noise of its own."""

EXTRAS = {
    "client_clip_weights": ("clip_weights",),
    "data_dependent_clip": ("bounds",),
    "data_dependent_noise": ("radius.",),
    "data_size_weights": ("size",),
    "divide_by_counts": ("mask.",),
    "noise_on_support": ("mask.",),
    "private_clamp": ("centre.", "radius."),
    "raw_similarity_weights": ("similarity",),
}
"""Departures that read private values of the clients, and the names of these extras; a name that
ends in a dot stands for one extra of each tensor (privacy/departures.py)."""

OF_CALIBRATION = frozenset(
    {
        "learning_rate_in_noise",
        "no_composition",
        "noise_over_all_clients",
        "sample_level_calibration",
    }
)
"""Departures of the way from an epsilon to the noise; a run whose multiplier is given has none of
them. They read nothing private and change no step of a method, so a study may declare them for any
(``privacy.departures``)."""

OF_SIZES = frozenset({"data_size_weights", "sample_level_calibration"})
"""Departures whose ledger counts the examples of each client."""

OF_LEARNING_RATE = frozenset({"learning_rate_in_noise"})
"""Departures whose noise depends on the learning rate."""

SPLIT_CLIP = frozenset({"per_tensor_clip", "per_layer_clip_unscaled"})
"""Departures that clip the parts of an update to C by themselves."""

WITHOUT_JOINT_CLIP = SPLIT_CLIP | {
    "client_clip_weights",
    "clip_in_training",
    "data_dependent_clip",
    "private_clamp",
}
"""Departures that put something else, or nothing, in the place of the joint clip."""

WITHOUT_BOUND = {
    "client_clip_weights": (
        "each client's private weights set its noise, and a layer of weight 0 has none"
    ),
    "clip_in_training": (
        "the message itself is not clipped, so nothing limits what one client changes"
    ),
    "data_dependent_clip": "a client's clip bounds follow its own update and have no upper limit",
    "data_dependent_noise": "the size of the noise follows private values and may be 0",
    "divide_by_counts": "a coordinate that only one client keeps is exactly 0 without that client",
    "noise_on_support": "coordinates without noise show which ones a client's private mask keeps",
    "private_clamp": (
        "the centre of the clamp is private and may be anywhere, so nothing limits what one "
        "client changes"
    ),
    "raw_similarity_weights": "a client's raw model sets its weight and thereby that of all others",
}
"""Departures under which no finite epsilon holds at any delta below 1, with the reason."""


def check_departures(departures: Iterable[str]) -> frozenset[str]:
    """Return the departures as a set; raise PrivacyError for one that is unknown."""
    names = frozenset(departures)
    for name in sorted(names):
        if name not in DEPARTURES:
            raise PrivacyError(
                "departure", got=name, expected="a known one", do=nearest(name, DEPARTURES)
            )
    return names


def check_adaptive(departures: Collection[str]) -> None:
    """Raise PrivacyError for departures with which there is no joint norm to adapt to, or no sum in
    which the bits could hide."""
    without = (OF_MESSAGES | WITHOUT_JOINT_CLIP).intersection(departures)
    if without:
        raise PrivacyError(
            f"departure {min(without)}: privacy.clip_quantile",
            got="adaptive clipping",
            expected="a fixed clip_norm",
            do="adaptive clipping is for one noised sum of jointly clipped updates",
        )
