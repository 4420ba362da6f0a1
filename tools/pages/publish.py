"""docs/ gets the studies that are named, and docs/results.md, the pages in docs/results/ and
docs/reproduction.md are written from what docs/ has.

A study of a paper's table, one with a ``layout``, goes to docs/reproduction/, any other one to
docs/results/, each with the methods that are finished. In docs/results/ what the search chose goes
with them, as ``search.json.gz``: to go on where its runs are not at hand, it is put back as
``results/searches/<study>.json``. With the last method comes the figure of all, but for a map,
which results.py draws.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from pages import archive, readme, reproduction, results
from pages.gain_map import small_figure
from pflpipe.cells import Cell
from pflpipe.data import datasets
from pflpipe.data.split import Split
from pflpipe.errors import DataError
from pflpipe.files import write_json
from pflpipe.json_records import to_json
from pflpipe.pipeline.project import Project, published
from pflpipe.report import measured_on
from pflpipe.report.figures import kinds
from pflpipe.report.tidy import tested, tidy
from pflpipe.study import config, figures, plans
from pflpipe.study.load import load_study
from pflpipe.study.study_spec import Study


def write(names: Sequence[str]) -> None:
    """Export these finished studies of the working directory and write the pages."""
    root, docs = Path(), Path("docs")
    if names:
        settings = config.load()
        project = Project(settings, root, thorough=False)
        for name in names:
            study = load_study(name, results=settings.results_dir)
            if study.layout is not None:
                target = _export_reproduction(study, project, docs)
            else:
                target = _export_compared(study, project, docs)
            print(f"{target}: written")
    pages = results.write(docs)
    if page := reproduction.write(docs, root / config.STUDIES):
        pages.append(page)
    if not pages:
        raise DataError(
            "docs/ has no study's results", do="name a finished one: make results STUDY=..."
        )
    for page in pages:
        print(f"{page}: written")


def _export_reproduction(study: Study, project: Project, docs: Path) -> Path:
    return reproduction.export(study, *finished_part(study, project), docs)


def _export_compared(study: Study, project: Project, docs: Path) -> Path:
    folder, target = project.settings.results_dir, docs / "results" / study.name
    _, told = finished_part(study, project)
    runs = readme.runs_comment(study, project.training_code)
    archive.export(study, folder, project.settings.data_dir, target, told, runs)
    if (chosen := project.outline(study.name).choices(folder)).is_file():
        packed = gzip.compress(chosen.read_bytes(), mtime=0)
        (target / archive.SEARCH).write_bytes(packed)
    found = archive.read(target)
    if not found.about.missing and len(found.runs[list(archive.SETTING)].drop_duplicates()) == 1:
        _draw(study, found.runs, project, target / "privacy_utility.png")
    return target


def _draw(study: Study, runs: pd.DataFrame, project: Project, target: Path) -> None:
    """Draw from what is committed: results of methods that came from elsewhere are not here."""
    settings, drawing = project.settings, figures.find(study, target.stem)
    with TemporaryDirectory() as folder:
        file = Path(folder) / target.name
        kinds.write(study, drawing, settings.results_dir, settings.data_dir, file, runs)
        small_figure(file, target)


def finished_part(study: Study, project: Project) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the tidy table of a study's finished methods, and of each of its cells where it was
    measured."""
    folder = project.settings.results_dir
    part = tested(study, folder)
    _plan_published(part.cells, folder, project.settings.data_dir)
    frame = tidy(part, folder)
    return frame, measured_on.of_cells(part, frame, folder)


def _plan_published(cells: Iterable[Cell], results: Path, data: Path) -> None:
    """Write the plans of the methods as published: Snakemake makes them for a table, and a part of
    a study has none yet."""
    for cell in published(cells):
        plan = results / "plans" / f"{cell.plan_id}.json"
        if plan.is_file():
            continue
        sizes = None
        if cell.plan_needs_partition:
            split = Split.load(results / "partitions" / f"{cell.partition_id}.npz")
            sizes = np.array([len(rows) for rows in split.train])
        made = data / f"{cell.dataset}.npz"
        notes = plans.told(datasets.read_header(made)) if cell.plan_needs_data else {}
        write_json(plan, to_json(plans.plan_of(cell, sizes, **notes)))
