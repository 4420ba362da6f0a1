"""Named data sets: what is known of each before anything is read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a named data set before reading it.

    Attributes:
        classes: number of classes K.
        train_size: number of training examples.
        image_shape: (H, W, C), or (D,) of float features.
        mean, std: per-channel (or one for all) constants of ``normalise``, on the scale 0..1.
        needs_network: whether the files must be fetched, if nobody laid them out.
        users: number of user ids, or None.
        collection: what its images were taken from, where other named data sets may have the same.
    """

    classes: int
    train_size: int
    image_shape: tuple[int, ...]
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    needs_network: bool = True
    users: int | None = None
    collection: str = ""


DRAWN = "dead_leaves"
"""The reference of features that no data are needed for: images that a program draws."""


# Constants: CIFAR-10, SVHN and FEMNIST as the compared papers' codes have them; otherwise [0, 1] is
# mapped to [-1, 1].
DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(10, 1438, (8, 8, 1), mean=(0.0,), std=(1.0,), needs_network=False),
    "mnist": DatasetInfo(10, 60_000, (28, 28, 1), collection="NIST"),
    "fashion_mnist": DatasetInfo(10, 60_000, (28, 28, 1)),
    "cifar10": DatasetInfo(
        10, 50_000, (32, 32, 3), mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010)
    ),
    "cifar100": DatasetInfo(100, 50_000, (32, 32, 3)),
    "svhn": DatasetInfo(10, 73_257, (32, 32, 3)),
    "emnist_byclass": DatasetInfo(62, 697_932, (28, 28, 1), collection="NIST"),
    "emnist_bymerge": DatasetInfo(47, 697_932, (28, 28, 1), collection="NIST"),
    "emnist_balanced": DatasetInfo(47, 112_800, (28, 28, 1), collection="NIST"),
    "emnist_letters": DatasetInfo(26, 124_800, (28, 28, 1), collection="NIST"),
    "emnist_digits": DatasetInfo(10, 240_000, (28, 28, 1), collection="NIST"),
    "emnist_mnist": DatasetInfo(10, 60_000, (28, 28, 1), collection="NIST"),
    "femnist": DatasetInfo(
        62, 671_585, (28, 28, 1), mean=(0.1307,), std=(0.3081,), users=3_400, collection="NIST"
    ),
    "mnist_writers": DatasetInfo(10, 56_014, (28, 28, 1), users=836, collection="NIST"),
    "wisdm": DatasetInfo(6, 4_332, (42,), users=36),
    "spi": DatasetInfo(2, 432_000, (1,), users=4_000),
    "spi_levels": DatasetInfo(6, 432_000, (1,), users=4_000),
    "epi": DatasetInfo(2, 160_231, (1,), users=3_516),
    "nafld": DatasetInfo(2, 107_468, (5,), users=5_106),
    "randhie": DatasetInfo(2, 14_793, (20,), users=5_912),
    "rwm5yr": DatasetInfo(2, 15_614, (9,), users=6_127),
    "insteval": DatasetInfo(2, 58_792, (1,), users=2_972),
    "jester": DatasetInfo(2, 1_448_657, (1,), users=24_983),
}
