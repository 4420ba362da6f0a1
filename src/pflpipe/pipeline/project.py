"""What the Snakefile asks of pflpipe: which cells a file name stands for, which files belong to
them, and what the program means that makes them.

Nothing here computes a result, and no script of the pipeline imports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pflpipe.attacks import registry as attacks
from pflpipe.audit import cases as audits
from pflpipe.cells import Cell, Model, Partition, Privacy, Training
from pflpipe.data import datasets
from pflpipe.errors import ConfigError, DataError, PflpipeError, nearest
from pflpipe.files import canonical_json
from pflpipe.learning import architectures
from pflpipe.methods import registry
from pflpipe.pipeline import code_version
from pflpipe.study import config, metrics, printed
from pflpipe.study import figures as drawings
from pflpipe.study.check import validate
from pflpipe.study.config import Config
from pflpipe.study.documents import read_yaml
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.load import finish, load_outline, study_names
from pflpipe.study.study_spec import Drawing, Outline, Study

ELSEWHERE = ("train", "evaluate", "attack", "audit")
"""Rules whose jobs run on a cluster if there is one."""


class Project:
    """The studies behind a workflow, read when they are first needed, so that a broken one disturbs
    only those who ask for it.

    Methods that take ``wildcards`` take what Snakemake calls so: the variable parts of a file's
    name, of which ``cell``, ``run``, ``partition`` and ``plan`` are ids, ``study`` is a name or
    ``<study>/search``, and ``method`` and ``attack`` are names. All raise the errors of
    ``pflpipe validate`` when a study that is asked for cannot be run.

    Args:
        settings: config.yaml as Snakemake merged it.
        root: folder of the Snakefile.
        thorough: whether a study is checked against the data it needs as well.
        choose: called with the name of a study before its runs are told that follow from its
            search, so that Snakemake knows them to wait for it; None on a cluster's node, where the
            choice is made already.
        noted: on a cluster's node, what ``note`` returned where the job was planned.
    """

    def __init__(
        self,
        settings: Config,
        root: Path,
        thorough: bool,
        choose: Callable[[str], object] | None = None,
        noted: str = "{}",
    ) -> None:
        self.settings = settings
        self.root = root
        self.package = root / "src" / "pflpipe"
        self.thorough = thorough
        self.choose = choose
        self._noted: dict[str, str] = json.loads(noted)
        self._outlines: dict[str, Outline] = {}
        self._studies: dict[tuple[str, int], Study] = {}
        self._named: dict[tuple[str, str], Cell] = {}  # by wildcard and id
        self._digests: dict[Path, str] = {}

    def check(self, words: Iterable[str] = ()) -> None:
        """Check the settings, the studies that they name, and those of a command line's targets, as
        ``pflpipe validate`` does."""
        for outline in validate(self.settings).values():
            self._add(outline)
        folders = "tables|figures|scores|searches|tracking|released"
        target = re.compile(
            rf"{re.escape(str(self.settings.results_dir))}/(?:{folders})/(?!(?:all|audit)\b)(\w+)"
        )
        attack = re.compile(rf".*/figures/\w+/({'|'.join(attacks.NAMES)})\.\w+")
        for word in words:
            if found := target.match(word):
                outline = self.outline(found[1])
                # A search may not have chosen yet; every candidate has the same runs to attack.
                if attacked := attack.fullmatch(word):
                    attacks.cells(attacked[1], outline.study())

    # ------------------------------------------------------------ studies and cells

    def outline(self, name: str) -> Outline:
        """Return what a study's file says; raises ConfigError when there is none or it says
        something impossible."""
        if name not in self._outlines:
            self._add(
                validate(self.settings, [name])[name] if self.thorough else load_outline(name)
            )
        return self._outlines[name]

    def study(self, name: str) -> Study:
        """Return a study, or its search when the name is ``<study>/search``.

        Raises:
            ConfigError: as ``outline``, or the study has no search. DataError: its search has not
                chosen yet.
        """
        name, _, part = name.partition("/")
        outline = self.outline(name)
        if part:
            if outline.search is None:
                raise ConfigError(
                    f"study {name!r} has no search", do=f"ask for results/tables/{name}.csv instead"
                )
            return outline.search
        file = outline.choices(self.settings.results_dir)
        made = file.stat().st_mtime_ns if outline.search and file.exists() else 0
        if (name, made) not in self._studies:  # the search may choose again while the workflow runs
            self._studies[name, made] = finish(outline, self.settings.results_dir)
        return self._studies[name, made]

    def cells(self, wildcards: Mapping[str, str]) -> list[Cell]:
        """Return the cells that the wildcards name: the one of an id (of a run: the cell that is
        trained), those of a method of a study, or all of a study; none while a search has to choose
        them first."""
        for kind in ("cell", "run", "partition", "plan"):
            if kind in wildcards:
                return [self._find(kind, wildcards[kind])]
        study, method = wildcards["study"], wildcards.get("method", "")
        if self._noted:
            outline = self.outline(study.partition("/")[0])
            self._expect(_file(outline.name), _cells_digest(outline))
        if self.choose is not None and self.waits(wildcards):
            if not self._has_chosen(study):
                # Not `choose` alone: Snakemake takes what waits for a file that is missing to be up
                # to date if its outputs exist.
                return []
            self.choose(study)
        if not method:
            return list(self.study(study).cells)
        # The cells of a method that does not search are known before the study's other ones.
        known = (
            self.study(study)
            if "/" in study or self.waits(wildcards)
            else self.outline(study).everything
        )
        found = [cell for cell in known.cells if cell.method == method]
        if not found:
            raise ConfigError(
                f"study {study!r} has no method {method!r}", do=nearest(method, known.methods)
            )
        return found

    def waits(self, wildcards: Mapping[str, str]) -> bool:
        """Return whether the cells of a study, or of one of its methods, follow from a choice on
        validation data."""
        study, method = wildcards["study"], wildcards.get("method", "")
        return "/" not in study and any(
            method in ("", line.method) for line in self.outline(study).searched
        )

    def trials(self, study: str, files: Callable[[str], list[str]]) -> list[str]:
        """Return those files of a study's search that its choice is made of. A choice over this
        very grid that came from another machine, without a score of its search, needs none.

        Args:
            files: of a search, named ``<study>/search``.
        """
        came = self._has_chosen(study) and not any(
            (self.settings.results_dir / "scores" / study / "search").glob("*.csv")
        )
        return [] if came else files(f"{study}/search")

    def attacked(self, wildcards: Mapping[str, str]) -> list[Cell]:
        """Return the cells of a study that an attack is about."""
        if not self.cells(wildcards):
            return []
        return attacks.cells(wildcards["attack"], self.study(wildcards["study"]))

    def methods(self) -> list[str]:
        """Return the package's methods in the studies of config.yaml. A method that none of them
        has is no reason to make anything again."""
        found = [self.outline(name).everything.cells for name in self.settings.studies]
        return sorted({cell.method for cells in found for cell in cells if not cell.source})

    def audited(self, name: str) -> list[str]:
        """Return the methods whose code an audit runs besides that of the mechanism."""
        return list(filter(None, [audits.find(name).scaled_by]))

    def _has_chosen(self, study: str) -> bool:
        """Return whether the search of a study has chosen among the candidates that its file has
        now."""
        try:
            self.study(study)
        except DataError:
            return False
        return True

    def _add(self, outline: Outline) -> None:
        self._outlines[outline.name] = outline
        # Whatever a search chooses, its cells are known by their ids.
        for cell in outline.everything.cells:
            self._named["cell", cell.id] = cell
            trained = registry.run_cell(cell)  # a method from outside may train as one of ours
            self._named.setdefault(("run", registry.run_id(cell)), trained)
            self._named.setdefault(("partition", cell.partition_id), cell)
            for planned in filter(None, (cell, trained, as_published(cell))):
                self._named.setdefault(("plan", planned.plan_id), planned)

    def _find(self, kind: str, name: str) -> Cell:
        # A job on a cluster starts its own snakemake, which is asked for one file and not told
        # which study wants it.
        wanted = kind, name
        for study in () if wanted in self._named else (*self.settings.studies, *study_names()):
            with contextlib.suppress(PflpipeError):
                self.outline(study)
            if wanted in self._named:
                break
        if wanted not in self._named:
            raise ConfigError(
                f"no study contains {name!r}", do="ask for results/tables/<study>.csv instead"
            )
        return self._named[wanted]

    # ------------------------------------------------------------ names of files

    def study_files(self, name: str) -> list[str]:
        """Return the files that say what a study is: its own, the printed numbers if it has any
        beside it, its search's choice."""
        outline = self.outline(name)
        is_printed = any(row.paper_metric for row in outline.everything.rows)
        return (
            [_file(name)]
            + [f"{config.STUDIES}/{printed.FILE}"] * is_printed
            + [f"{self.settings.results_dir}/searches/{name}.json"] * bool(outline.search)
        )

    def scores(self, study: str) -> list[str]:
        """Return the score files of a study, or of its search."""
        base, _, part = study.partition("/")
        known = self.study(study) if part else self.outline(base).everything
        return [f"{self.settings.results_dir}/scores/{study}/{name}.csv" for name in known.methods]

    def figures(self, study: str) -> list[str]:
        """Return the figures of a study."""
        folder = f"{self.settings.results_dir}/figures/{study}"
        return [f"{folder}/{drawing.name}.png" for drawing in self.outline(study).figures]

    def drawing(self, study: str, name: str) -> Drawing:
        """Return a figure of a study by its name; ConfigError where it has none."""
        return drawings.find(self.outline(study), name)

    def audits(self, cells: Iterable[Cell]) -> list[str]:
        """Return the audits that the certified runs among the cells stand on."""
        return self._audits(case.id for cell in cells for case in audits.of_cell(cell))

    def audits_of_methods(self) -> list[str]:
        """Return the audits of every version of the methods in the studies of config.yaml."""
        outlines = map(self.outline, self.settings.studies)
        drawn = any(c.training.sample_rate < 1 for o in outlines for c in o.everything.cells)
        return self._audits(one.case.id for one in audits.of_methods(self.methods(), drawn))

    def all_audits(self) -> list[str]:
        """Return the audits of every distinct release of all methods."""
        return self._audits(audits.cases())

    def _audits(self, ids: Iterable[str]) -> list[str]:
        return [f"{self.settings.results_dir}/audits/{id}.json" for id in dict.fromkeys(ids)]

    def failures(self, study: str) -> int:
        """Return how often MLflow did not take a study, from the marker of the last attempt.

        It is a parameter of the rule: after a failed attempt it differs from the one that the
        attempt was made with, so that Snakemake tries again, and after a good one it does not.
        """
        marker = self.settings.results_dir / "tracking" / f"{study}.done"
        text = marker.read_text(encoding="utf-8") if marker.exists() else ""
        before = re.search(r"^failed before: (\d+)$", text, re.MULTILINE)
        return (int(before[1]) if before else 0) + text.startswith("pending")

    # ------------------------------------------------------------ what the program means

    def code(self, script: str, files: Iterable[Path] = ()) -> str:
        """Return digests of the meaning of what a script of ``workflow/scripts`` runs: the script
        with the parts of the package that it imports, and the files that it is told by name."""
        starts = [self.root / "workflow" / "scripts" / f"{script}.py", *files]
        return ", ".join(f"{start.name} {self._digest(start)}" for start in starts)

    def note(self, outlines: Iterable[Outline]) -> str:
        """Take the digests of all scripts, and of what these studies are, as they are now: an edit
        in the meantime must not pass for what a job ran.

        Jobs that run what was imported now (forks.py) need no more. Jobs on a cluster read
        everything again when they begin, hours later, and Snakemake believes them to be what it
        planned (snakemake#3234); they are given what is returned, JSON, and stop if they find
        something else. Of scripts that never run there nothing is returned: a job looks at what
        comes before it as well, which is not its own to make.

        Args:
            outlines: the studies that are asked for.
        """
        scripts = {
            script.stem: script for script in (self.root / "workflow" / "scripts").glob("*.py")
        }
        known = list(outlines)
        for script in scripts.values():
            self._digest(script)
        starts = {scripts[name] for name in ELSEWHERE if name in scripts}
        for outline in known:
            starts.update(self.files_of(outline.everything.cells))
            starts.update(metrics.files(outline.document, config.STUDIES))
        found = {self._place(start): self._digest(start) for start in sorted(starts)}
        found |= {_file(outline.name): _cells_digest(outline) for outline in known}
        return json.dumps(found)

    def training_code(self, cells: Iterable[Cell]) -> str:
        """Return digests of the meaning of what trains these cells."""
        return self.code("train", self.files_of(list(cells)))

    def testing_code(self, study: str, cells: Iterable[Cell]) -> str:
        """Return digests of the meaning of what tests these cells of a study or of its search, and
        the names of the metrics."""
        document = self.outline(study.partition("/")[0]).document
        files = [*self.files_of(list(cells)), *metrics.files(document, config.STUDIES)]
        code = self.code("evaluate", files)
        return " ".join([code, *document.get("metrics", ())])

    def files_of(self, cells: Iterable[Cell]) -> list[Path]:
        """Return the files with the methods of cells, and the networks that are the user's own."""
        found = {self._method_file(cell.method, cell.source) for cell in cells}
        networks_of_users = {architectures.file_of(cell.model) for cell in cells}
        return sorted(found | {file for file in networks_of_users if file is not None})

    def method_files(self, names: Iterable[str]) -> list[Path]:
        """Return the files with these methods of the package."""
        return sorted({self._method_file(name) for name in names})

    def style_files(self) -> list[Path]:
        """Return what figures look like, which no import statement leads to."""
        return sorted((self.package / "report" / "figures").glob("*.mplstyle"))

    def source_files(self, dataset: str) -> tuple[list[Path], list[Path]]:
        """Return the file of a user's own data set, as an input; or the file with the function that
        makes it, which counts by its meaning."""
        source = self.settings.datasets.get(dataset)
        if source is None:
            return [], []
        file = datasets.source_file(source)
        return ([], [file]) if file != source else ([file], [])

    def _method_file(self, name: str, source: str = "") -> Path:
        return registry.file_of(name, source) if source else self.package / f"methods/{name}.py"

    def _digest(self, start: Path) -> str:
        if start not in self._digests:
            found = code_version.digest(start, self.package)
            self._expect(self._place(start), found)
            self._digests[start] = found
        return self._digests[start]

    def _place(self, file: Path) -> str:
        """Return where a file is, in words that hold on all machines."""
        return os.path.relpath(file, self.root)

    def _expect(self, file: str, digest: str) -> None:
        if self._noted.get(file, digest) != digest:
            raise ConfigError(
                f"{file}, or a file that it needs, was edited after this job was planned",
                do="when the snakemake that planned it has ended, give the same command again",
            )


def _file(study: str) -> str:
    return f"{config.STUDIES}/{study}.yaml"


def _cells_digest(outline: Outline) -> str:
    cells = sorted(cell.id for cell in outline.everything.cells)
    return hashlib.sha256(canonical_json(cells).encode()).hexdigest()[:10]


_IDS: dict[str, Callable[[Cell], str]] = {
    "{cell}": lambda cell: cell.id,
    "{run}": registry.run_id,
    "{partition}": lambda cell: cell.partition_id,
    "{plan}": lambda cell: cell.plan_id,
    "{dataset}": lambda cell: cell.dataset,
}


def each(pattern: str, cells: Iterable[Cell]) -> list[str]:
    """Return the path of every cell, each path once.

    Args:
        pattern: a path with ``{cell}``, ``{run}``, ``{partition}``, ``{plan}`` or ``{dataset}``.
    """
    ((name, id_of),) = [item for item in _IDS.items() if item[0] in pattern]
    return list(dict.fromkeys(pattern.replace(name, id_of(cell)) for cell in cells))


def published(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells whose plans say what the methods of a table are worth as published."""
    return list(filter(None, map(as_published, cells)))


def certified(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells whose runs are certified."""
    return [cell for cell in cells if cell.claim == "certified"]


def largest_mb(files: Iterable[str]) -> float:
    """Return the size in MB of the largest file; 0 for none, as while a search has not chosen."""
    return 1e-6 * max(map(os.path.getsize, files), default=0)


def check_syntax(path: str) -> None:
    """Raise ConfigError when a file of settings is no YAML mapping.

    For Snakemake, which reads it next: it would not say where the mistake is, and take the last of
    two equal keys.
    """
    document = config.read(path)
    if not isinstance(document, dict):
        config.parse(document, path)


def partition_request(cell: Cell) -> str:
    """Return the JSON of a cell that holds what its partition depends on and nothing else, so that
    all who share it agree."""
    nothing = Model(""), Training(0, 0, 0, "", 0.0), Privacy()
    shared = Cell(cell.dataset, cell.partition, *nothing, method="", seed=cell.seed)
    return canonical_json(shared.to_dict())


def plan_request(cell: Cell) -> str:
    """Return the JSON of a cell that holds what its plan depends on and nothing else, so that all
    who share it agree."""
    sizes = cell.plan_needs_partition
    training = Training(
        rounds=cell.training.rounds,
        local_epochs=cell.training.local_epochs if sizes else 0,
        batch_size=cell.training.batch_size if sizes else 0,
        optimizer="",
        lr=cell.training.lr if cell.plan_needs_lr else 0.0,
        sample_rate=cell.training.sample_rate,
    )
    shared = Cell(
        dataset=cell.dataset if sizes or cell.plan_needs_data else "",
        partition=cell.partition if sizes else Partition("", cell.partition.clients),
        model=cell.model if cell.plan_needs_model else Model(""),
        training=training,
        privacy=cell.privacy,
        method="",
        departures=cell.departures,
        seed=cell.seed if sizes else 0,
        source=cell.source,
    )
    return canonical_json(shared.to_dict())


def settings_words(settings: Mapping[str, object], file: Path) -> list[str]:
    """Return the words of a command line that give another snakemake these settings where they are
    not those of a file, config.yaml."""
    stored = read_yaml(str(file)) if file.exists() else {}
    stored = stored if isinstance(stored, dict) else {}
    changed = [
        f"{key}={json.dumps(value)}"
        for key, value in settings.items()
        if stored.get(key, ...) != value
    ]
    return ["--config", *changed] if changed else []
