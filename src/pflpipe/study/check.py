"""All checks of a study before a job starts; of the data, they read only the headers of arrays."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec

from pflpipe.cells import Model
from pflpipe.data import blocks, datasets, features, partition, sources
from pflpipe.errors import ConfigError, DataError, Problems, located, nearest
from pflpipe.files import canonical_json
from pflpipe.learning import architectures, initial, losses
from pflpipe.methods import registry
from pflpipe.privacy.plan import check_delta
from pflpipe.study import load
from pflpipe.study.config import STUDIES, Config, study_file
from pflpipe.study.study_spec import Outline

S3_PLUGIN = "snakemake_storage_plugin_s3"
"""The module of Snakemake's plugin for object stores."""


def validate(settings: Config, names: Iterable[str] = ()) -> dict[str, Outline]:
    """Load and check the named studies (default: those of config.yaml) and the headers of the data
    they need; return name -> outline. Data sets that none of them uses are in ``unused_data``.

    Raises:
        PflpipeError: all errors.
    """
    problems = Problems()
    headers: dict[str, datasets.Header | None] = {}
    known = load.study_names()
    wanted = tuple(names)
    if (settings.store or "").startswith("s3:") and not find_spec(S3_PLUGIN):
        expected = "the Python package snakemake-storage-plugin-s3, which is not installed"
        do = "pip install 'pflpipe[lab]'"
        problems.refuse(f"{settings.source}: store", got=settings.store, expected=expected, do=do)
    for name in () if wanted else settings.studies:
        if name not in known:
            what, place = f"{name!r} does not exist in {STUDIES}/", f"{settings.source}: studies"
            problems.refuse(what, place, do=nearest(name, known))
    outlines = {}
    for name in wanted or [name for name in settings.studies if name in known]:
        in_file = Problems()  # one collector a file: two files may have the same error
        with in_file.at():
            outline = load.read(name, STUDIES, in_file)
            if outline is not None:
                outlines[name] = outline
                file = str(study_file(name))
                _check_data(settings, outline, file, headers, in_file)
        with problems.at():
            in_file.stop()
    problems.stop()
    return outlines


def unused_data(settings: Config, outlines: Iterable[Outline]) -> Iterator[str]:
    """Yield a warning for each of the user's data sets that is not in order and that none of these
    studies uses."""
    used = {name for outline in outlines for name in outline.everything.datasets}
    for name in settings.datasets:
        if name not in used:
            try:
                _header(settings, name)
            except DataError as error:
                yield f"warning: {error} (no study that was checked uses it)"


def _header(settings: Config, dataset: str) -> datasets.Header | None:
    """Return the header of a data set, None where it is known when the data are made.

    Raises:
        DataError: unknown, or the user's own and not in order.
    """
    source = settings.datasets.get(dataset)
    if source is None:
        return datasets.describe(dataset, listed=settings.datasets)
    made = settings.data_dir / f"{dataset}.npz"
    with located(f"{settings.source}: datasets.{dataset}"):
        is_other = made.resolve() not in [file.resolve() for file in sources.files(source)[0]]
        what = f"{source} is the file that pflpipe writes"
        DataError.unless(is_other, what, do="keep yours in another folder")
        header = sources.describe(dataset, source, made)
        sources.check_made(source, made)
        return header


def _check_data(
    settings: Config,
    outline: Outline,
    location: str,
    headers: dict[str, datasets.Header | None],
    problems: Problems,
) -> None:
    """Check that the partitions and models of a study's runs fit its data sets, and its delta the
    number of their users."""
    study = outline.everything
    references = [cell.features.public for cell in study.cells]
    for name in dict.fromkeys([*study.datasets, *filter(None, references)]):
        if name not in headers:
            headers[name] = None  # the error is reported once
            with problems.at("" if name in settings.datasets else location):
                headers[name] = _header(settings, name)
    fitting: dict[Model, datasets.Header] = {}
    widths: dict[Model, int] = {}
    needs = ((c.dataset, c.features, c.partition, c.model, c.training) for c in study.cells)
    # Distinct combinations only: a study has thousands of cells, but few of these.
    for dataset, made, wanted, model, training in dict.fromkeys(needs):
        header, source = headers[dataset], settings.datasets.get(dataset)
        if isinstance(source, dict) and blocks.is_fitted(source):
            # Of dealt clients one's rows would change the features of another.
            got, do = source["missing"], f"write a value or indicator in datasets.{dataset}.missing"
            with problems.at(location):
                what, expected = f"partition.kind {wanted.kind}: missing", "what no row decides"
                ConfigError.unless(wanted.kind == "natural", what, got, expected, do)
        if header is None and isinstance(source, dict):  # known when the data are made
            with problems.at(location):
                partition.check_users(wanted, blocks.has_users(source))
            if declared := blocks.labels(source):
                with problems.at(location):
                    losses.outputs(training.loss, *declared)
        if header is not None:
            with problems.at(location):
                classes = 0 if header.numbers else header.classes
                partition.check(wanted, classes, header.train_size, header.users)
            with problems.at(location):
                public = headers[made.public or dataset] or header
                shape = features.shape(made, header.image_shape, public.image_shape)
                with problems.at(location):
                    width = losses.outputs(training.loss, header.classes, header.numbers)
                    architectures.check_tokens(model, header.vocabulary)
                    architectures.shapes(model, shape, width)
                    initial.weights(model, shape, width)
                    fitting[model] = dataclasses.replace(header, image_shape=shape)
                    widths[model] = width
                with problems.at(location):
                    check_augment(training.augment, shape)
    for cell in () if outline.document.get("allow_large_delta") else study.cells:
        header, wanted = headers[cell.dataset], cell.partition
        if header is not None and header.users and not wanted.clients:
            with problems.at(location):
                check_delta(cell.privacy.delta, header.users - wanted.new_clients)
    built = [cell for cell in study.cells if cell.model in fitting]
    works = {(c.method, c.source, c.model, canonical_json(c.hyperparameters)): c for c in built}
    for cell in works.values():
        of_method = cell.method, cell.model, cell.hyperparameters, cell.source
        with problems.at(location):
            registry.check_model(*of_method, widths[cell.model])
    tried = {(c.method, c.source): c for c in built if c.source}
    for cell in tried.values():
        from pflpipe.study import trial  # it imports torch, as the method's file does

        with problems.at(location):
            trial.check(cell, fitting[cell.model])


def check_augment(names: Sequence[str], image_shape: tuple[int, ...]) -> None:
    """Raise ConfigError if there are transforms, but the examples are no images ``(H, W, C)``."""
    got = f"{', '.join(names)} for examples of shape {tuple(image_shape)}"
    expected, do = "images, shape (H, W, C)", "remove it for features"
    fits = not names or len(image_shape) == 3
    ConfigError.unless(fits, "training.augment", got, expected, do)
