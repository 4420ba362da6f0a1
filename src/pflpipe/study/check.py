"""All checks of a study before a job starts; of the data, they read only the headers of arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from pflpipe.data import datasets, partition
from pflpipe.errors import ConfigError, DataError, Problems, located, nearest
from pflpipe.files import canonical_json
from pflpipe.learning import architectures
from pflpipe.methods import registry
from pflpipe.study import load
from pflpipe.study.config import STUDIES, Config
from pflpipe.study.study_spec import Outline, Study


def validate(
    settings: Config, names: Iterable[str] = (), folder: str | os.PathLike[str] = STUDIES
) -> dict[str, Outline]:
    """Load and check the named studies (default: those of config.yaml) and the headers of the data
    they need; return name -> outline.

    Raises:
        PflpipeError: all errors.
    """
    problems = Problems()
    headers = _own_data(settings, problems)
    known = load.study_names(folder)
    wanted = tuple(names)
    for name in () if wanted else settings.studies:
        if name not in known:
            what, place = f"{name!r} does not exist in {folder}/", f"{settings.source}: studies"
            problems.refuse(what, place, do=nearest(name, known))
    outlines = {}
    for name in wanted or [name for name in settings.studies if name in known]:
        in_file = Problems()  # one collector a file: two files may have the same error
        with in_file.at():
            outline = load.read(name, folder, in_file)
            if outline is not None:
                outlines[name] = outline
                _check_data(settings, outline.everything, f"{folder}/{name}.yaml", headers, in_file)
        with problems.at():
            in_file.stop()
    problems.stop()
    return outlines


def _own_data(settings: Config, problems: Problems) -> dict[str, datasets.Header | None]:
    """Return data set -> header for the user's data; None if it is refused, or if only running the
    user's function gives it."""
    headers: dict[str, datasets.Header | None] = {}
    for dataset, source in settings.datasets.items():
        headers[dataset] = None
        with problems.at(), located(f"{settings.source}: datasets.{dataset}"):
            if source.resolve() == (settings.data_dir / f"{dataset}.npz").resolve():
                raise DataError(
                    f"{source} is the file that pflpipe writes",
                    do="keep yours in another folder",
                )
            made = settings.data_dir / f"{dataset}.npz"
            headers[dataset] = datasets.describe(dataset, source, made)
    return headers


def _check_data(
    settings: Config,
    study: Study,
    location: str,
    headers: dict[str, datasets.Header | None],
    problems: Problems,
) -> None:
    """Check that the partitions and models of a study's runs fit its data sets."""
    for name in study.datasets:
        if headers.setdefault(name, None) is None and name not in settings.datasets:
            with problems.at(location):
                headers[name] = datasets.describe(name, own=settings.datasets)
    fitting = set()
    needs = ((c.dataset, c.partition, c.model, c.training.augment) for c in study.cells)
    # Distinct combinations only: a study has thousands of cells, but few of these.
    for dataset, wanted, model, transforms in dict.fromkeys(needs):
        header = headers[dataset]
        if header is not None:
            with problems.at(location):
                partition.check(wanted, header.classes, header.train_size, header.users)
            with problems.at(location):
                architectures.shapes(model, header.image_shape, header.classes)
                fitting.add(model)
            with problems.at(location):
                check_augment(transforms, header.image_shape)
    works = {
        (c.method, c.source, c.model, canonical_json(c.hyperparameters)): c.hyperparameters
        for c in study.cells
    }
    for (method, origin, model, _), hyperparameters in works.items():
        if model in fitting:
            with problems.at(location):
                registry.check_model(method, model, hyperparameters, origin)


def check_augment(names: Sequence[str], image_shape: tuple[int, ...]) -> None:
    """Raise ConfigError if there are transforms, but the examples are no images ``(H, W, C)``."""
    if names and len(image_shape) != 3:
        raise ConfigError(
            "training.augment",
            got=f"{', '.join(names)} for examples of shape {tuple(image_shape)}",
            expected="images, shape (H, W, C)",
            do="remove it for features",
        )
