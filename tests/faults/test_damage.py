"""Files that were cut off, emptied or changed by a byte after they were written: whoever reads one
says in one line that it is damaged and what to do, or computes what it would have computed."""

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import malformed
from pflpipe.data import datasets, downloads, partition
from pflpipe.errors import DataError
from pflpipe.files import read_json, write_json
from pflpipe.json_records import to_json
from pflpipe.methods import registry
from pflpipe.report.tidy import existing, tidy
from pflpipe.simulation import runs, scores
from pflpipe.study import load, ranking
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.plans import plan_of
from reliability import record

pytestmark = pytest.mark.faults
STUDY = malformed.STUDY | {"methods": [{"name": "feddpa"}], "seeds": [0]}
STUDY["partition"] = STUDY["partition"] | {"clients": 5, "validation_fraction": 0.2}
HOW = {"device": "cpu", "backend": "loop"}


class Place:
    """A folder in which a study of one run is done, and its files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results = folder, folder / "results"
        self.study = load.load_study("good", folder / "studies")
        cells = self.study.cells
        self.places = scores.places_of(cells, [cells[0].id], self.results, folder / "data")
        ((self.cell, self.inputs, self.run),) = self.places
        self.scores = self.results / "scores/good/feddpa.csv"

    def train(self, out: Path) -> None:
        cell, checkpoints = registry.run_cell(self.cell), self.folder / "checkpoints"
        runs.train(cell, self.inputs, out, checkpoints, checkpoint_seconds=0.0, **HOW)

    def evaluate(self, out: Path) -> None:
        scores.evaluate_cells(self.places, out, **HOW)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("done")
    malformed.write_good(folder)
    malformed.write(folder / "studies/good.yaml", STUDY)
    made = Place(folder)
    cell, inputs = made.cell, made.inputs
    datasets.prepare("digits", None, folder / "downloads", inputs.data)
    split = partition.make(datasets.load_arrays(inputs.data), cell.partition, cell.seed)
    split.save(inputs.partition)
    sizes = [len(rows) for rows in split.train]
    for planned in filter(None, (cell, as_published(cell))):
        file = made.results / "plans" / f"{planned.plan_id}.json"
        write_json(file, to_json(plan_of(planned, sizes)))
    made.train(made.run)
    made.evaluate(made.scores)
    return made


def simulated(place: Place) -> object:
    """What training is about to do with its three files."""
    found = runs.simulate(place.cell, place.inputs, **HOW)
    rows = [part.tolist() for part in (*found.split.train, *found.split.test, found.split.common)]
    sums = [float(values.sum()) for values in (found.train.x, found.train.y, found.test.x)]
    return found.plan, rows, sums


def evaluated(place: Place) -> object:
    out = place.folder / "again.csv"
    place.evaluate(out)
    return out.read_bytes()


def tabled(place: Place) -> object:
    return tidy(place.study, place.results).to_csv()


def ranked(place: Place) -> object:
    return repr(ranking.answers(place.scores, "good", ranking.VALIDATION))


def drawn(place: Place) -> object:
    return existing(place.run / "rounds.csv").read_bytes()


FILES = {
    "array": (lambda place: place.inputs.data, simulated),
    "partition": (lambda place: place.inputs.partition, simulated),
    "plan, read by training": (lambda place: place.inputs.plan, simulated),
    "plan, read by the table": (lambda place: place.inputs.plan, tabled),
    "result (state.pt)": (lambda place: place.run / "state.pt", evaluated),
    "states of the clients (states.bin)": (lambda place: place.run / "states.bin", evaluated),
    "result (run.json)": (lambda place: place.run / "run.json", tabled),
    "score file, read by the table": (lambda place: place.scores, tabled),
    "score file, read by the search": (lambda place: place.scores, ranked),
    "seconds by round (timing.csv)": (lambda place: place.run / "timing.csv", tabled),
    "curves (rounds.csv)": (lambda place: place.run / "rounds.csv", drawn),
}
"""What is read, and by whom; whoever reads a file calls one of these functions."""
MEASURED = ("seconds by round (timing.csv)", "curves (rounds.csv)")
"""Files whose digits nothing vouches for."""


def cut(content: bytes) -> Iterator[bytes]:
    yield from (content[: len(content) // 2], content[:-2], content[:1])


def changed(content: bytes) -> Iterator[bytes]:
    """One byte another one; in a text, one digit another digit."""
    text = not any(byte > 127 or byte < 9 for byte in content)
    places = [index for index, byte in enumerate(content) if not text or chr(byte).isdigit()]
    for index in random.Random(0).sample(places, 12):
        other = (content[index] - 48 + 5) % 10 + 48 if text else content[index] ^ 0x11
        yield content[:index] + bytes([other]) + content[index + 1 :]


LOSSES = {"truncated": cut, "emptied": lambda _: iter([b""])}
DAMAGES = LOSSES | {"tampered with": changed}


def refused(path: Path, ask: Callable[[], object], content: bytes, good: object) -> bool:
    """Whether the file with this content is refused, in one line that names it; if it is not, it is
    read as it was written."""
    before, said = path.read_bytes(), ""
    path.write_bytes(content)
    try:
        assert ask() == good
    except DataError as error:
        said = str(error)
    finally:
        path.write_bytes(before)
    assert not said or path.name in said or path.parent.name in said
    assert "\n" not in said
    return bool(said)


@pytest.mark.parametrize(
    ("name", "damage"),
    [(name, how) for name in FILES for how in DAMAGES if name not in MEASURED or how in LOSSES],
)
def test_a_damaged_file_is_refused_in_one_line_or_read_as_it_was(name, damage, place):
    find, reader = FILES[name]
    path, good = find(place), reader(place)
    damaged = DAMAGES[damage](path.read_bytes())
    found = [refused(path, lambda: reader(place), content, good) for content in damaged]
    # Some bytes of an archive say nothing, such as the date of a member.
    assert all(found) or (path.suffix in (".npz", ".pt") and damage == "tampered with")
    assert any(found)
    record(f"{name}: {damage}", "refused in one line that says to remove it")


@pytest.mark.parametrize("part", ["pt", "states"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_not_used_and_the_run_ends_with_the_same_bits(
    part, damage, place, tmp_path, monkeypatch, capsys
):
    show = runs.Report.show

    def stop(self: runs.Report, progress: object) -> None:
        show(self, progress)
        if progress.round == 2:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(runs.Report, "show", stop)
        with pytest.raises(KeyboardInterrupt):
            place.train(run)
    left = {file: file.read_bytes() for file in (place.folder / "checkpoints").iterdir()}
    (path,) = (file for file in left if file.suffix == f".{part}")
    for content in list(DAMAGES[damage](left[path]))[:4]:
        for file, before in left.items():
            file.write_bytes(before)
        path.write_bytes(content)
        capsys.readouterr()
        place.train(run)
        log = capsys.readouterr().err
        assert ("starting from round 1" in log) != ("resuming after round" in log)
        for name in ("rounds.csv", "run.json", "states.bin"):
            assert (run / name).read_bytes() == (place.run / name).read_bytes()
        files = (folder / "state.pt" for folder in (place.run, run))
        one, other = (torch.load(file, weights_only=True)["params"] for file in files)
        assert all(torch.equal(value, other[key]) for key, value in one.items())
        assert not list((place.folder / "checkpoints").iterdir())
    outcome = "the run begins again, says so, and ends with the same bits"
    record(f"checkpoint (.{part}): {damage}", outcome)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_download_is_refused_before_anything_is_unpacked(damage, tmp_path):
    content = bytes(range(256)) * 4
    archive = downloads.Archive((), "it.tar.gz", hashlib.md5(content).hexdigest())
    original = downloads.Original((archive,), lambda _: False, None, archive.path)
    for damaged in DAMAGES[damage](content):
        (tmp_path / archive.path).write_bytes(damaged)
        with pytest.raises(DataError, match=r"it\.tar\.gz is damaged.*remove it"):
            downloads._provide("it", original, archive, tmp_path, may_download=False)
    record(f"download: {damage}", "refused in one line that says to remove it")


def test_an_edited_verdict_or_choice_is_not_believed(tmp_path):
    file = tmp_path / "audit.json"
    write_json(file, {"verdict": "refuted", "lines": [{"chosen": {"values": {"lr": 0.1}}}]})
    text = file.read_text()
    for old, new in (("refuted", "kept"), ("0.1", "0.2")):
        file.write_text(text.replace(old, new))
        with pytest.raises(DataError, match="edited or damaged; remove it"):
            read_json(file)
    record("verdict of an audit, choice of a search: edited", "refused in one line")
