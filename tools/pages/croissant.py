"""``docs/results/croissant.json``: what the committed studies publish, described for machines in
the format Croissant 1.0 of MLCommons (http://mlcommons.org/croissant/1.0).

Every study has two files, ``table.csv`` with a row for each line as it is printed, and
``runs.parquet`` with a row for each run (archive.py). The columns of lists of the second, which
have an entry for each client or round, are in the file but not in its record set.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pflpipe
from pages.archive import FILE, Archive
from pflpipe.files import write_text

NAME = "croissant.json"
TABLE = "table.csv"
_WORDS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format "
    "includes isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated "
    "replace samplingRate separator source subField transform"
)
_VOCABULARY = {
    **{"@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/"},
    **{"cr": "http://mlcommons.org/croissant/", "dct": "http://purl.org/dc/terms/"},
    **{"rai": "http://mlcommons.org/croissant/RAI/", "conformsTo": "dct:conformsTo"},
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    **{"dataType": {"@id": "cr:dataType", "@type": "@vocab"}},
    **{name: f"cr:{name}" for name in _WORDS.split()},
}
"""The context of Croissant 1.0, as its validator wants it whole."""


def write(root: Path, studies: Iterable[Archive]) -> None:
    """Write the description of the studies in ``docs/results/``.

    Args:
        root: that folder, with the table of every study.
    """
    known = sorted(studies, key=lambda study: study.name)
    write_text(
        root / NAME, json.dumps(description(root, known), ensure_ascii=False, indent=0) + "\n"
    )


def description(root: Path, studies: Sequence[Archive]) -> dict[str, Any]:
    """Return the description as JSON-LD."""
    told = " ".join(text for study in studies for text in study.about.measured.values())
    files, records = [], []
    for study in studies:
        table, runs = root / study.name / TABLE, root / study.name / FILE
        with table.open(encoding="utf-8", newline="") as lines:
            columns = dict.fromkeys(next(csv.reader(lines)), "sc:Text")
        kinds = {name: _type(values.to_numpy()) for name, values in study.runs.items()}
        for file, kind, what, found in (
            (table, "text/csv", "Every line with all columns, as printed.", columns),
            (runs, "application/x-parquet", "Every run.", kinds),
        ):
            files.append(_file(root, file, kind))
            records.append(_records(f"{study.name}/{file.stem}", study.about.title, what, found))
    return {
        "@context": _VOCABULARY,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "pflpipe-results",
        "description": (
            "Accuracies of personalized federated learning methods under one user-level "
            "differential privacy guarantee. Measurements of the experimenter on public data, "
            "covered by no epsilon."
        ),
        "license": "https://spdx.org/licenses/Apache-2.0",
        "creator": {"@type": "sc:Organization", "name": "The pflpipe authors"},
        "citeAs": "CITATION.cff of pflpipe, and the papers of the methods",
        "version": pflpipe.__version__,
        "datePublished": max(re.findall(r"\d{4}-\d\d-\d\d", told), default="1970-01-01"),
        "distribution": files,
        "recordSet": records,
    }


def _type(values: np.ndarray) -> str:
    return {"i": "sc:Integer", "f": "sc:Float"}.get(values.dtype.kind, "sc:Text")


def _file(root: Path, file: Path, kind: str) -> dict[str, Any]:
    place, content = str(file.relative_to(root)), file.read_bytes()
    return {
        "@type": "cr:FileObject",
        "@id": place,
        "name": place,
        "contentUrl": place,
        "contentSize": f"{len(content)} B",
        "encodingFormat": kind,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _records(name: str, title: str, what: str, columns: Mapping[Any, str]) -> dict[str, Any]:
    file = f"{name}.csv" if name.endswith("/table") else f"{name}.parquet"
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": f"{title} {what}",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{name}/" + re.sub(r"\W+", "_", column),
                "name": column,
                "dataType": kind,
                "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
            }
            for column, kind in columns.items()
        ],
    }
