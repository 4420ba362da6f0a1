"""A cell: all settings of one training run, with a readable id and a digest.

A study expands to cells (study/load.py). An option of a study is a field of this file: its type,
default, bounds and choices give the schema, the checks and the headings (options.py).

Equal cells have the same id in every study. Cells that differ only in steps after training share
one training run (``registry.trained``). Ids and keys are made of the values that differ from the
defaults, so a new option renames nothing. A changed default changes the meaning of old ids
(``MEANING``); changed noise affects only runs (``seeds.STREAMS``).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from pflpipe import json_records, options
from pflpipe.code import dependencies, reference
from pflpipe.code.dependencies import PLACEBO, Dependency
from pflpipe.facts.datasets import DATASETS, DRAWN
from pflpipe.facts.departures import OF_CALIBRATION, OF_LEARNING_RATE, OF_SIZES, SPLIT_CLIP
from pflpipe.files import canonical_json
from pflpipe.options import Option

MEANING = 2
"""Version of the meaning of a cell's settings. It is part of every cell's id."""
LATER = {
    "head_solver": "sgd",
    "dp_fedsam.adaptive": False,
    "dp_fedsam_topk.adaptive": False,
    "dp_fedsam_topk.before_noise": True,
    "fedglp_adp.by_layer": True,
    "dp_fedpgn.smoothing": 0.0,
    "one_release_factors.equal": False,
    "one_shot_ridge.sums": False,
}
"""Hyper-parameters, of all methods or of one, that are younger than studies that were run, and the
value that is no part of a cell's id, so that ids of then stay."""
EARLIER: Mapping[str, dict[str, Any]] = {
    "dp_pfeddsu": {"ste": False},
    "fedglp_adp": {"trend": "raw"},
}
"""Hyper-parameters that methods had when studies were run, and the value of all these runs, which
is a part of their ids still."""
DATASET_PATTERN, DATASET_WORDS = "^[a-z0-9_]+$", "a name of small letters, digits and _"


@dataclass(frozen=True)
class Partition:
    """The partition of the data set over clients (data/partition.py)."""

    kind: Annotated[str, Option(choices=("dirichlet", "pathological", "iid", "natural"))]
    """how examples are dealt to clients; natural: by the data set's own user ids"""
    clients: Annotated[int, Option(least=2, unless=("kind", "natural"))] = 0
    """number of clients M, a public value; if left out (natural only), all user ids of the data
    set, and the plan reads M from the partition"""
    alpha: Annotated[float | None, Option(above=0, only=("kind", "dirichlet"), needed=True)] = None
    """Dirichlet concentration; small = very different clients"""
    classes_per_client: Annotated[
        int | None, Option(least=1, only=("kind", "pathological"), needed=True)
    ] = None
    """s, the number of classes that one client holds"""
    min_size: Annotated[int, Option(least=1)] = 1
    """least number of examples of a client, its validation and own test examples included; a
    natural user with fewer training examples takes part without examples"""
    # Any value below 1: for every fraction a client keeps an example to train on
    # (apportion.held_out_size).
    validation_fraction: Annotated[float, Option(least=0, below=1)] = 0.1
    """fraction of each client's examples, without its own test, on which hyper-parameters are
    chosen"""
    test_fraction: Annotated[float | None, Option(above=0, below=1)] = None
    """fraction of each client's examples that is its own test; null takes the own tests from the
    data set's test set, disjointly and in the class proportions of the clients' shares (natural:
    each user's test rows)"""
    new_clients: Annotated[int, Option(least=0)] = 0
    """number N of further clients that take no part in training: after the last round each of them
    makes a personal model from the released one, which is tested; natural without clients: N of all
    user ids"""
    common_test: Annotated[int, Option(least=0)] = 0
    """number of rows of the common test set, drawn at random; 0 = all. Every client's model is
    tested on all of them, which takes longer than training if there are many clients"""
    users: Annotated[
        str | None, Option(choices=("ignored",), only=("kind", "dirichlet", "pathological", "iid"))
    ] = None
    """ignored: the data set's user ids are not regarded, so that a client is no user but a dealt
    client; needed to deal the rows of a data set that has user ids"""
    max_clients_per_user: Annotated[int | None, Option(least=1, only=("users", "ignored"))] = None
    """with how many clients the rows of one user lie at most: they are dealt among so many, drawn
    for each user by name, and the epsilon of a person is that of a group of so many; null: with any
    number, so that it is that of all clients or none. A client with fewer than min_size examples
    then takes part without any"""
    shifted: Annotated[float, Option(least=0, most=1, only=("test_fraction",))] = 0.0
    """concept shift: share of the clients, the first ones, and of new clients, whose label y is
    replaced by y + 1, and the last class by 0; the common test set keeps its labels"""


@dataclass(frozen=True)
class Model:
    """A network of learning/networks.py, or of a user's file."""

    name: Annotated[str, Option()]
    """name of a network; or file.py:Net, a torch.nn.Module in a file that is run; its path is
    relative to the study's file (in a cell: to the working directory)"""
    hidden: Annotated[
        tuple[int, ...] | None,
        Option(least=1, only=("name", "mlp", "embedding", "gru"), needed=True),
    ] = None
    """widths of the hidden layers; of embedding and gru: the one number of dimensions; of gru with
    items: those of a token and of the state"""
    items: Annotated[int | None, Option(least=2, only=("name", "embedding", "gru"))] = None
    """number of items: for embedding, an example is the index of one, or one-hot; for gru, it is a
    sequence of tokens, of which there are so many"""
    relu_everywhere: Annotated[bool, Option(only=("name", "cnn_femnist"))] = False
    """add the two ReLUs that the official code lacks"""
    shortcut: Annotated[
        str, Option(choices=("convolution", "padding"), only=("name", "resnet20"))
    ] = "convolution"
    """where a block changes the width of resnet20: convolution, of 1x1 with parameters (option B of
    its paper); or padding, every second pixel with channels of zeros (option A)"""
    normalisation: Annotated[
        str, Option(choices=("group", "batch"), only=("name", "resnet20", "resnet18"))
    ] = "group"
    """of a ResNet: group (GroupNorm); or batch (BatchNorm), by the mean and variance of a minibatch
    in training, and in tests by those of the client's own training rows, which are never sent"""
    options: Annotated[dict[str, Any], Option()] = field(default_factory=dict, hash=False)
    """named arguments of file.py:Net"""
    init: Annotated[str | None, Option()] = None
    """a safetensors file of initial weights, which no client's rows have made; null draws them from
    the seed; its path is relative to the study's file (in a cell: to the working directory)"""
    freeze: Annotated[tuple[str, ...], Option(only=("init",), distinct=True)] = ()
    """beginnings of names of layers that stay as init has them: nobody trains or sends them"""
    init_digest: str = ""  # SHA-256 of the file (learning/initial.py)


@dataclass(frozen=True)
class Training:
    """Rounds, sampling of clients, and local work of every client."""

    rounds: Annotated[int, Option(least=1)]
    """number of rounds T"""
    local_epochs: Annotated[int, Option(least=1)]
    """passes E over a client's examples per round"""
    batch_size: Annotated[int, Option(least=0)]
    """examples per step; 0 = all examples of the client"""
    optimizer: Annotated[str, Option(choices=("sgd", "adam"))]
    """of the local steps"""
    lr: Annotated[float, Option(above=0)]
    """learning rate of the local steps"""
    momentum: Annotated[float, Option(least=0, below=1, only=("optimizer", "sgd"))] = 0.0
    """of sgd"""
    weight_decay: Annotated[float, Option(least=0)] = 0.0
    """L2 penalty"""
    lr_decay: Annotated[float, Option(above=0, most=1)] = 1.0
    """factor of the learning rate of the local steps from one round to the next"""
    drop_last: Annotated[bool, Option()] = False
    """leave out the last step of a pass if it has fewer than batch_size examples"""
    sample_rate: Annotated[float, Option(above=0, most=1)] = 1.0
    """Poisson probability q of a client per round"""
    groups: Annotated[int, Option(least=1)] = 1
    """number b of groups of clients that take part in turn, round t (from 0) with group t mod b;
    1 = no groups; who is in which is public, and sample_rate must be 1"""
    augment: Annotated[
        tuple[str, ...], Option(choices=("crop", "flip", "rotate"), distinct=True)
    ] = ()
    """random training transforms of images, in the order in which they are applied"""
    evaluate_every: Annotated[int, Option(least=0)] = 0
    """number of rounds between accuracies in rounds.csv, which also has them for the last round; 0
    = never; training does not change"""
    evaluate_clients: Annotated[int, Option(least=0)] = 0
    """number of clients over which these accuracies are averaged, drawn once per seed; 0 = all"""
    placebo: Annotated[bool, Option()] = False
    """replace every client's update by zeros before it is clipped, so that the release is the noise
    alone: the control of a private method, of which no table says that it is the best; the values
    that a search tries for all methods are not tried for it"""
    evaluate_personal: Annotated[bool, Option()] = True
    """whether personal models are tested too; false tests only the released model, in one pass over
    the common test rows"""
    precision: Annotated[str, Option(choices=("float32", "tf32", "bf16"))] = "float32"
    """precision of products: float32; tf32 (a GPU rounds the factors of matrix products and
    convolutions); bf16 (forward passes of training); parameters, clipping, noise and optimizer are
    always float32"""
    loss: Annotated[str, Option()] = "cross_entropy"
    """cross_entropy; binary (one output for two classes); squared_error or absolute_error (labels
    are real numbers); or file.py:name, a pflpipe.Loss in a file that is run; its path is relative
    to the study's file (in a cell: to the working directory)"""


MECHANISMS = ("gaussian", "laplace", "discrete_gaussian", "skellam")
_NOISY = ("mechanism", *MECHANISMS)


@dataclass(frozen=True)
class Privacy:
    """The requested guarantee: either ``epsilon`` (the noise is calibrated to it) or
    ``noise_multiplier`` (fixed), never both. Without privacy only ``mechanism="none"`` is set."""

    mechanism: Annotated[str, Option(choices=MECHANISMS)] = "none"
    """the kind of noise"""
    epsilon: Annotated[float | None, Option(above=0, only=_NOISY, either="noise_multiplier")] = None
    """central epsilon at delta"""
    noise_multiplier: Annotated[float | None, Option(above=0, only=_NOISY)] = None
    """noise std over sensitivity"""
    delta: Annotated[float | None, Option(above=0, below=1, only=_NOISY, needed=True)] = None
    """of the guarantee"""
    clip_norm: Annotated[float | None, Option(above=0, only=_NOISY, needed=True)] = None
    """bound on the norm of one client's whole update"""
    clip_quantile: Annotated[
        float | None, Option(above=0, below=1, only=("mechanism", "gaussian"))
    ] = None
    """adaptive clipping: the bound follows this quantile of the clients' norms, estimated from bits
    that are released with noise; clip_norm is the bound of the first round"""
    clip_lr: Annotated[float, Option(above=0, only=("clip_quantile",))] = 0.2
    """of the logarithm of the adaptive bound"""
    clip_bit_noise: Annotated[float | None, Option(above=0, only=("clip_quantile",))] = None
    """standard deviation of the noise on the sum of the bits; null: q M / 20"""
    accountant: Annotated[str, Option(choices=("exact", "rdp"), only=("mechanism", "gaussian"))] = (
        "exact"
    )
    """the curve that calibrates: exact (GDP at q = 1, PLD otherwise) or rdp (as the papers)"""
    band: Annotated[int, Option(least=1, only=("mechanism", "gaussian"))] = 1
    """number of rounds over which noise is correlated: that of a round takes back a part of the
    noise of the band - 1 rounds before it; 1 = independent noise; sample_rate must be 1"""
    buffers: Annotated[int, Option(least=0, only=("band", 1))] = 0
    """number of buffers, each as large as a model, that correlate noise over all rounds (BLT) with
    less memory than a band of as many; 0 = none; sample_rate must be 1"""
    noise: Annotated[
        str, Option(choices=("reproducible", "secure"), only=("mechanism", "discrete_gaussian"))
    ] = "reproducible"
    """reproducible: who knows the settings of a simulated run can draw it again; secure: from the
    operating system, so that nobody can, not even to repeat the run (privacy/secure.py)"""
    bits: Annotated[int, Option(least=4, most=32, only=("mechanism", "skellam"))] = 16
    """of every number that a client sends under secure aggregation, which adds modulo 2^bits"""
    dropout: Annotated[float, Option(least=0, below=1, only=("mechanism", "skellam"))] = 0.0
    """share of the clients that may fail in a round, a public number: the noise of the others is
    enough"""
    departures: Annotated[
        tuple[str, ...],
        Option(choices=tuple(sorted(OF_CALIBRATION)), distinct=True, only=("epsilon",)),
    ] = ()
    """steps from epsilon to the noise that a paper may have gone wrong in (docs/privacy.md), in
    addition to those of the method; the row is nominal, and profile must be paper"""


@dataclass(frozen=True)
class Server:
    """The server optimizer (simulation/server.py); by default the server adds the released
    update."""

    optimizer: Annotated[str, Option(choices=("sgd", "momentum", "adam", "yogi"))] = "sgd"
    """of the server: sgd; momentum (FedAvgM); adam or yogi (FedAdam, FedYogi), whose lr is about
    the size of a coordinate's step"""
    lr: Annotated[float, Option(above=0)] = 1.0
    """learning rate of the server"""
    momentum: Annotated[float, Option(least=0, below=1, only=("optimizer", "momentum"))] = 0.9
    """fraction of the last step that is added to the next one"""
    beta1: Annotated[float, Option(least=0, below=1, only=("optimizer", "adam", "yogi"))] = 0.9
    """decay of the mean of the updates"""
    beta2: Annotated[float, Option(least=0, below=1, only=("optimizer", "adam", "yogi"))] = 0.99
    """decay of the mean of their squares"""
    tau: Annotated[float, Option(above=0, only=("optimizer", "adam", "yogi"))] = 1e-3
    """adaptivity: added to the square root of that mean, which starts at tau squared"""


@dataclass(frozen=True)
class Features:
    """Features that replace the examples in training (data/extraction.py): made of images without
    learning, of items' texts by a frozen network, or read from a file; by default networks get the
    examples."""

    kind: Annotated[str, Option(choices=("none", "scattering", "file", "text"))] = "none"
    """none; scattering: averages of the moduli of wavelet coefficients, to which no client's data
    contribute; file: those of your own file, such as a frozen network's; text: of people and items,
    what a frozen network makes of the text of each item"""
    scales: Annotated[int, Option(least=1, only=("kind", "scattering"))] = 2
    """J: averages are over windows of about 2^J pixels"""
    pool: Annotated[int, Option(least=1, only=("kind", "scattering"))] = 2
    """each coefficient is averaged to pool x pool numbers"""
    reference: Annotated[str | None, Option(only=("kind", "scattering"))] = None
    """named public data set; each feature is standardised by mean and deviation of its training
    images. dead_leaves: 5,000 images that a program draws, of the data set's own shape"""
    clip: Annotated[float, Option(above=0, only=("reference",))] = 5.0
    """largest absolute value of a standardised feature"""
    file: Annotated[str | None, Option(only=("kind", "file", "text"), needed=True)] = None
    """an .npz file of features, one row for each row of the data set, or for text a file with one
    line for each item; its path is relative to the study's file (in a cell: to the working
    directory)"""
    made_by: Annotated[str | None, Option(only=("kind", "file"), needed=True)] = None
    """what made the features of the file, and the public data from which it learned; the ledger
    says so in these words"""

    @property
    def public(self) -> str | None:
        """Name of the reference if it is a public data set, and not images that a program draws."""
        return None if self.reference == DRAWN else self.reference


@dataclass(frozen=True)
class Cell:
    """The settings of one training run.

    ``departures`` are the named steps that the certified mechanism lacks (facts/departures.py).
    ``source`` locates a method from outside the package (``registry.locate``). ``digests`` has the
    SHA-256 of the code of each part from outside that training reads, by kind
    (``row_code.with_digests``).
    """

    dataset: Annotated[str, Option(pattern=DATASET_PATTERN)]
    """a name of small letters, digits and _, known to pflpipe or given to your own arrays in
    config.yaml"""
    partition: Partition
    model: Model
    training: Training
    privacy: Privacy
    method: str
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    profile: Annotated[str, Option(choices=("strict", "paper"))] = "strict"
    """strict = smallest change that makes the user-level claim true; paper = as printed, with named
    departures"""
    official_code: Annotated[bool, Option()] = False
    """adds what only the official code does (profile paper)"""
    departures: tuple[str, ...] = ()
    seed: int = 0
    source: str = ""
    server: Server = Server()
    features: Features = Features()
    digests: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; ``Cell.from_dict`` is the inverse."""
        # Not dataclasses.asdict, which copies every value and takes seconds for the cells of a
        # large study.
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        blocks = {name: dict(vars(values[name])) for name in BLOCKS}
        copied = {name: dict(values[name]) for name in ("hyperparameters", "digests")}
        return values | blocks | copied

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cell:
        """Return the cell from the values of ``to_dict`` (after JSON)."""
        return json_records.from_json(cls, values, "cell")

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that the id is a digest of: those that differ from the defaults."""
        method = self.method
        given = EARLIER.get(method, {}) | self.hyperparameters
        known = {n: v for n, v in given.items() if v != LATER.get(f"{method}.{n}", LATER.get(n))}
        cell = dataclasses.replace(self, hyperparameters=known)
        return {"streams": MEANING, **json_records.without_defaults(cell)}

    @cached_property
    def id(self) -> str:
        """``words`` and ten hexadecimal digits of the cell's digest; safe as a file name and a
        wildcard."""
        return slug(self.words, self.identity)

    @property
    def words(self) -> list[str]:
        """The readable parts of an id: data set, partition, method, noise, seed."""
        budget = self.privacy
        noise = "nonprivate"
        if budget.epsilon is not None:
            noise = f"eps{budget.epsilon:g}"
        elif budget.noise_multiplier is not None:
            noise = f"sigma{budget.noise_multiplier:g}"
        partition = _partition_words(self.partition)
        return [self.dataset, partition, self.method, noise, f"seed{self.seed}"]

    @property
    def data_id(self) -> str:
        """Name of the file of its examples: that of the data set, followed by the kind and a digest
        of features."""
        if self.features.kind == "none":
            return self.dataset
        settings = json_records.without_defaults(self.features)
        return f"{self.dataset}.{slug([self.features.kind], settings)}"

    @property
    def reference(self) -> Cell | None:
        """The cell with the features whose statistics standardise its own: those of the public data
        set, as they are; ``None`` without a reference, or if a program draws its images."""
        kept = self.features
        if kept.public is None:
            return None
        features = Features(kept.kind, kept.scales, kept.pool)
        return dataclasses.replace(self, dataset=kept.public, features=features)

    @cached_property
    def partition_id(self) -> str:
        """Id of the partition file, the same for all methods, budgets and models of one seed."""
        partition = json_records.without_defaults(self.partition)
        words = _partition_words(self.partition)
        parts = {"dataset": self.dataset, "partition": partition, "seed": self.seed}
        return slug([self.dataset, words, f"seed{self.seed}"], parts)

    @property
    def clients_id(self) -> str:
        """A text that is equal for runs on the same clients, whose epsilons can be composed.

        Users of a data set are the same for every seed, and the first M of them are among the first
        N. Rows that are dealt make other clients at every seed. A client's share is drawn before
        its test and validation parts are split off and its labels shifted, so these fractions do
        not matter.
        """
        if self.partition.kind == "natural":
            return self.dataset
        share = dataclasses.replace(
            self.partition, validation_fraction=0.1, test_fraction=None, shifted=0.0
        )
        return dataclasses.replace(self, partition=share).partition_id

    @cached_property
    def accounted(self) -> Cell:
        """The cell with only the settings that its privacy plan depends on, the same for all cells
        with the same accounting."""
        sizes, training = self.plan_needs_partition, self.training
        division, model, loss, features = self.partition, self.model, training.loss, self.features
        local = (training.local_epochs, training.batch_size) if sizes else (0, 0)
        origin = {name: getattr(features, name) for name in ("reference", "file", "made_by")}
        if not sizes:
            limits = {name: getattr(division, name) for name in ("users", "max_clients_per_user")}
            division = Partition("", division.clients, **limits)
        if not self.plan_needs_model:
            network = model.name if reference.is_reference(model.name) else ""
            model = Model(network, init=model.init, init_digest=model.init_digest)
        return Cell(
            dataset=self.dataset if sizes or self.plan_needs_data else "",
            partition=division,
            model=model,
            training=Training(
                *(training.rounds, *local, "", training.lr if self.plan_needs_lr else 0.0),
                sample_rate=training.sample_rate,
                groups=training.groups,
                loss=loss if reference.is_reference(loss) else "cross_entropy",
            ),
            privacy=self.privacy,
            method=self.method if self.source else "",
            departures=self.departures,
            seed=self.seed if sizes else 0,
            # The ledger names what is from outside, and where features come from.
            source=self.source,
            digests=self.digests,
            features=Features(**origin),
        )

    @cached_property
    def plan_id(self) -> str:
        """Id of the privacy plan, shared by all cells with the same accounting."""
        training, clients = self.training, self.partition.clients or "all"
        noise = f"q{training.sample_rate:g}", f"T{training.rounds}"
        words = [self.privacy.mechanism, f"M{clients}", *noise]
        return slug(words, json_records.without_defaults(self.accounted))

    @property
    def fixed(self) -> bool:
        """Whether cohorts are fixed in advance or noise is correlated (privacy/correlated.py)."""
        return self.training.groups > 1 or self.privacy.band > 1 or self.privacy.buffers > 0

    @cached_property
    def outside(self) -> tuple[Dependency, ...]:
        """The parts from outside the package that the cell names; of a file of features without a
        digest, which would follow from the clients' data."""
        named = {
            "method": f"{self.source}:{self.method}" if self.source else "",
            "loss": self.training.loss if reference.is_reference(self.training.loss) else "",
            "network": self.model.name if reference.is_reference(self.model.name) else "",
            "features": self.features.file or "",
        }
        given = ((kind, name) for kind, name in named.items() if name)
        found = [Dependency.of(kind, name, self.digests.get(kind, "")) for kind, name in given]
        if self.model.init:
            found.append(Dependency.of(dependencies.START, self.model.init, self.model.init_digest))
        return tuple(found)

    @property
    def claim(self) -> str:
        """The claim of its row, one of ``CLAIMS`` or ``PLACEBO``."""
        if self.training.placebo:
            return PLACEBO
        return dependencies.claim_of(self.privacy.mechanism, self.departures, self.outside)

    @property
    def plan_needs_partition(self) -> bool:
        """Whether the ledger depends on the partition: a departure reads the numbers of examples,
        or the number of clients follows from the data."""
        return self._departs(OF_SIZES) or not self.partition.clients

    @property
    def plan_needs_data(self) -> bool:
        """Whether the ledger depends on the arrays of the data set: the ledger of a private run
        states whether the number of classes is declared, which for a data set without a name only
        the arrays know, and the ledger of every run has the warnings about the rows."""
        known = DATASETS.get(self.dataset)
        if known is not None:  # there is no warning of the known images and items
            return len(known.image_shape) == 1 and known.image_shape != (1,)
        return self.dataset != ""  # "": a plan of any that has a name

    @property
    def plan_needs_model(self) -> bool:
        """Whether a departure makes the ledger depend on the number of tensors or layers of the
        model."""
        return self._departs(SPLIT_CLIP)

    @property
    def plan_needs_lr(self) -> bool:
        """Whether a departure makes the noise depend on the learning rate."""
        return self._departs(OF_LEARNING_RATE)

    def _departs(self, names: frozenset[str]) -> bool:
        return self.privacy.mechanism != "none" and not names.isdisjoint(self.departures)


#: The blocks of a cell by name.
BLOCKS: Mapping[str, type] = options.blocks(Cell)
#: Every option of a study by its dotted path.
OPTIONS: Mapping[str, options.Declared] = dict(options.flat(Cell))
#: Dotted paths of what describes every run, hyper-parameters aside.
PATHS = frozenset({"method", *OPTIONS})


def _partition_words(partition: Partition) -> str:
    details = {"dirichlet": partition.alpha, "pathological": partition.classes_per_client}
    detail = details.get(partition.kind)
    words = partition.kind if detail is None else f"{partition.kind}{detail:g}"
    return f"{words}x{partition.clients or 'all'}"


def slug(words: list[str], content: Any) -> str:
    """Return the words and ten hexadecimal digits of the content's digest."""
    digest = hashlib.sha256(canonical_json(content).encode()).hexdigest()[:10]
    return "-".join([*words, digest])
