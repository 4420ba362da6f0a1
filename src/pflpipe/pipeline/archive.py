"""Packs the runs of a finished study into one file for each method, and unpacks them (``pflpipe
archive``).

A method's runs, their logs and measurements become ``results/archives/<study>/<method>.tar``.
Whenever either command is interrupted, each file is in its place, in the archive or in both, and
the same command completes the work.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pflpipe.errors import DataError
from pflpipe.files import atomic
from pflpipe.pipeline.progress import LOGS
from pflpipe.study import catalog, load

FOLDER = "archives"


def pack(name: str, results: Path) -> Iterator[str]:
    """Replace the runs of a finished study by archives; yield a line for each.

    Args:
        name: of the study. Runs that it shares with other studies are packed too.
        results: folder of results.

    Raises:
        PflpipeError: the study has errors, its table or a run is missing, or a file is not what its
            archive has.
    """
    from pflpipe.report import tidy

    outline = load.load_outline(name)
    choices = load.chosen(outline, results)
    tidy.stored(outline.study(choices), results)
    runs: dict[str, list[str]] = {}
    for run, cell in catalog.runs(outline, choices).items():
        runs.setdefault(cell.method, []).append(run)
    for unfinished in (results / FOLDER / name).glob(".*"):  # of an interrupted command
        shutil.rmtree(unfinished) if unfinished.is_dir() else unfinished.unlink()
    for method, names in runs.items():
        target = results / FOLDER / name / f"{method}.tar"
        packed = _runs_in(target) if target.exists() else set(names)
        if set(names) - packed:
            do = f"pflpipe archive {name} --restore, then archive the study again"
            raise DataError(f"{target} lacks runs of the study", do=do)
        if not target.exists():
            _write(target, _places(results, names))
        _compare(target, results)
        for place in _places(results, names).values():
            _remove(place)
        yield f"{target}: {len(names):,} runs, {1e-6 * target.stat().st_size:.1f} MB"


def restore(name: str, results: Path) -> Iterator[str]:
    """Put the runs of a study's archives back, with their times, and remove the archives; yield a
    line for each.

    Raises:
        DataError: there is no archive, it is damaged, or a file is there that differs from it.
    """
    folder = results / FOLDER / name
    if not folder.exists():
        raise DataError(f"study {name} has no archive in {folder}")
    for file in sorted(folder.glob("[!.]*.tar")):
        names, scratch = sorted(_runs_in(file)), folder / f".{file.stem}"
        shutil.rmtree(scratch, ignore_errors=True)
        with _opened(file) as tar:
            tar.extractall(scratch, filter="data")
        for member, place in _places(results, names).items():
            if (scratch / member).exists() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                (scratch / member).rename(place)
        shutil.rmtree(scratch)
        _compare(file, results, complete=True)
        file.unlink()
        yield f"{results}/runs: {len(names)} runs of {file.stem}"
    shutil.rmtree(folder)  # with what an interrupted command left there


def check(results: Path, run: str) -> None:
    """Raise DataError if a run is in an archive, and not in its place."""
    file = _archived(results).get(run)
    if file and not (results / "runs" / run).exists():
        do = f"pflpipe archive {file.parent.name} --restore"
        raise DataError(f"run {run} is in {file}", do=f"put it back: {do}")


@functools.cache
def _archived(results: Path) -> dict[str, Path]:
    """Return run -> its archive."""
    archives = sorted((results / FOLDER).glob("*/[!.]*.tar"))
    return {run: file for file in archives for run in _runs_in(file)}


def _runs_in(archive: Path) -> set[str]:
    with _opened(archive) as tar:
        parts = [name.split("/") for name in tar.getnames()]
        return {part[1] for part in parts if part[0] == "runs"}


def _places(results: Path, runs: list[str]) -> dict[str, Path]:
    """Return the names of what an archive has of these runs -> their places."""
    places = {}
    for run in runs:
        places[f"runs/{run}"] = results / "runs" / run
        places[f"measurements/{run}.tsv"] = results / "benchmarks" / "train" / f"{run}.tsv"
        places[f"logs/{run}.log"] = LOGS / f"{run}.log"
    return places


def _write(target: Path, places: dict[str, Path]) -> None:
    for member, place in places.items():
        if member.startswith("runs/") and not (place / "run.json").exists():
            raise DataError(f"{place} is missing", do="let snakemake finish the study first")
    with atomic(target) as path, tarfile.open(path, "w") as tar:
        for member, place in places.items():
            if place.exists():
                tar.add(place, member)


def _compare(archive: Path, results: Path, *, complete: bool = False) -> None:
    """Raise DataError if a file in its place is not what the archive has, or with ``complete`` if
    one is missing."""
    with _opened(archive) as tar:
        packed = {member.name: member for member in tar if member.isfile()}
        for name, place in _places(results, sorted(_runs_in(archive))).items():
            for file in filter(Path.is_file, [place, *place.rglob("*")]):
                member = packed.pop((Path(name) / file.relative_to(place)).as_posix(), None)
                copy = tar.extractfile(member) if member else None
                with file.open("rb") as original:
                    is_same = copy is not None and _digest(copy) == _digest(original)
                if not is_same:
                    do = f"remove the archive if {file} is right, and {file} if it is not"
                    raise DataError(f"{file} is not what {archive} has", do=do)
    if complete and packed:
        raise DataError(f"{archive} was not restored", got=f"no {min(packed)}", do="try again")


def _digest(file: IO[bytes]) -> bytes:
    digest = hashlib.sha256()
    while block := file.read(2**20):
        digest.update(block)
    return digest.digest()


def _remove(place: Path) -> None:
    """Remove a file or a folder, of which no part is in place afterwards, whatever happens."""
    aside = place.with_name(f".{place.name}.archived")
    shutil.rmtree(aside, ignore_errors=True)
    if place.is_dir():
        place.rename(aside)
        shutil.rmtree(aside)
    place.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except tarfile.TarError as error:
        raise DataError(f"{archive} cannot be read", got=str(error)) from error
