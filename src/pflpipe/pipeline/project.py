"""The functions that the Snakefile calls: cells of a file name, files of cells, and digests of the
code that makes them.

Nothing here computes a result, and no script of the workflow imports it.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pflpipe.attacks import jobs as attacks
from pflpipe.auditing import cases as audits
from pflpipe.cells import Cell, Model, Privacy, Training
from pflpipe.code import meaning
from pflpipe.data import sources
from pflpipe.errors import ConfigError, DataError, PflpipeError, nearest
from pflpipe.files import canonical_json
from pflpipe.methods import registry, row_code
from pflpipe.study import config, metric_columns, printed
from pflpipe.study import figures as drawings
from pflpipe.study.check import validate
from pflpipe.study.config import Config
from pflpipe.study.documents import read_yaml
from pflpipe.study.epsilon_as_published import as_published
from pflpipe.study.load import finish, load_outline, study_names
from pflpipe.study.study_spec import Drawing, Outline, Study

SHIPPED = Path(__file__).with_name("shipped")
"""What the wheel has of the repository: in a clone, links to it."""
SNAKEFILE = (SHIPPED / "Snakefile").resolve()
"""The workflow that goes with this package."""
ELSEWHERE = ("features", "train", "evaluate", "attack", "audit")
"""Rules whose jobs run on a cluster, if there is one."""


class Project:
    """The studies of a workflow. Each is read when it is first needed, so that an invalid study
    disturbs no other one.

    ``wildcards`` are Snakemake's: the variable parts of a file's name. ``cell``, ``run``,
    ``partition``, ``plan`` and ``data`` are ids, ``study`` is a name or ``<study>/search``,
    ``method`` and ``attack`` are names. All methods raise the errors of ``pflpipe validate`` for
    a study that cannot be run.

    Args:
        settings: config.yaml as Snakemake merged it.
        root: folder of the Snakefile.
        thorough: whether to check a study against the data it needs.
        choose: called with the name of a study before the runs that follow from its search are
            returned, so that Snakemake makes them wait for the search; None on a cluster's node,
            where the search has chosen.
        noted: on a cluster's node, the result of ``note`` where the job was planned.
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
        in_clone = root / "src" / "pflpipe"
        self.package = in_clone if in_clone.is_dir() else root.resolve().parents[1]
        self.thorough = thorough
        self.choose = choose
        self._noted: dict[str, str] = json.loads(noted)
        self._outlines: dict[str, Outline] = {}
        self._studies: dict[tuple[str, int], Study] = {}
        self._named: dict[tuple[str, str], Cell] = {}  # by wildcard and id
        self._digests: dict[Path, str] = {}

    def check(self, arguments: Iterable[str] = ()) -> None:
        """Check the settings and their studies, and the studies among the targets of a command
        line, as ``pflpipe validate`` does."""
        for outline in validate(self.settings).values():
            self._add(outline)
        folders = "tables|figures|scores|searches|tracking|released"
        target = re.compile(
            rf"{re.escape(str(self.settings.results_dir))}/(?:{folders})/(?!(?:all|audit)\b)(\w+)"
        )
        attack = re.compile(rf".*/figures/\w+/({'|'.join(attacks.NAMES)})\.\w+")
        for argument in arguments:
            if match := target.match(argument):
                outline = self.outline(match[1])
                # A search may not have chosen yet; every candidate has the same runs to attack.
                if attacked := attack.fullmatch(argument):
                    attacks.cells(attacked[1], outline.study())

    # ------------------------------------------------------------ studies and cells

    def outline(self, name: str) -> Outline:
        """Return the outline of a study; raise ConfigError if its file is missing or invalid."""
        if name not in self._outlines:
            checked = validate(self.settings, [name])[name] if self.thorough else load_outline(name)
            self._add(checked)
        return self._outlines[name]

    def study(self, name: str) -> Study:
        """Return a study, or its search if the name is ``<study>/search``.

        Raises:
            ConfigError: as ``outline``, or the study has no search.
            DataError: its search has not chosen yet.
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
        if (name, made) not in self._studies:  # a search may choose again during the workflow
            self._studies[name, made] = finish(outline, self.settings.results_dir)
        return self._studies[name, made]

    def cells(self, wildcards: Mapping[str, str]) -> list[Cell]:
        """Return the cells of the wildcards: the cell of an id (of a run: the trained cell), those
        of a method of a study, or all of a study; none as long as a search has to choose them."""
        for kind in ("cell", "run", "partition", "plan", "data"):
            if kind in wildcards:
                return [self._find(kind, wildcards[kind])]
        study, method = wildcards["study"], wildcards.get("method", "")
        if self._noted:
            outline = self.outline(study.partition("/")[0])
            self._expect(_file(outline.name), _cells_digest(outline))
        if self.choose is not None and self.waits(wildcards):
            if not self._has_chosen(study):
                # Without `choose`: if an input file is missing, Snakemake takes existing outputs
                # of a job to be up to date.
                return []
            self.choose(study)
        if not method:
            return list(self.study(study).cells)
        # The cells of a method without a search are known before its study has chosen.
        is_open = "/" in study or self.waits(wildcards)
        known = self.study(study) if is_open else self.outline(study).everything
        cells = [cell for cell in known.cells if cell.method == method]
        if not cells:
            raise ConfigError(
                f"study {study!r} has no method {method!r}", do=nearest(method, known.methods)
            )
        return cells

    def waits(self, wildcards: Mapping[str, str]) -> bool:
        """Return whether the cells of a study, or of one of its methods, depend on a search."""
        study, method = wildcards["study"], wildcards.get("method", "")
        return "/" not in study and any(
            method in ("", line.method) for line in self.outline(study).searched
        )

    def trials(self, study: str, files: Callable[[str], list[str]]) -> list[str]:
        """Return the files of a study's search that its choice depends on. If the choice over this
        grid comes from another machine, without scores of the search, it depends on none.

        Args:
            files: returns the files of a search, named ``<study>/search``.
        """
        copied = self._has_chosen(study) and not any(
            (self.settings.results_dir / "scores" / study / "search").glob("*.csv")
        )
        return [] if copied else files(f"{study}/search")

    def attacked(self, wildcards: Mapping[str, str]) -> list[Cell]:
        """Return the cells of a study that an attack targets."""
        if not self.cells(wildcards):
            return []
        return attacks.cells(wildcards["attack"], self.study(wildcards["study"]))

    def methods(self) -> list[str]:
        """Return the package's methods in the studies of config.yaml. A method in none of them
        repeats nothing."""
        studies = [self.outline(name).everything.cells for name in self.settings.studies]
        return sorted({cell.method for cells in studies for cell in cells if not cell.source})

    def audited(self, name: str) -> list[str]:
        """Return the methods whose code an audit runs in addition to the mechanism."""
        return list(filter(None, [audits.find(name).scaled_by]))

    def _has_chosen(self, study: str) -> bool:
        """Return whether the search of a study has chosen among the current candidates."""
        try:
            self.study(study)
        except DataError:
            return False
        return True

    def _add(self, outline: Outline) -> None:
        self._outlines[outline.name] = outline
        # With the cells of all candidates, so that every possible id is known.
        for cell in outline.everything.cells:
            self._named["cell", cell.id] = cell
            trained = registry.run_cell(cell)  # a user's method may train as one of the package
            self._named.setdefault(("run", registry.run_id(cell)), trained)
            self._named.setdefault(("partition", cell.partition_id), cell)
            for featured in filter(None, (cell, cell.reference)):
                self._named.setdefault(("data", featured.data_id), featured)
            for planned in filter(None, (cell, trained, as_published(cell))):
                self._named.setdefault(("plan", planned.plan_id), planned)

    def _find(self, kind: str, name: str) -> Cell:
        # A job on a cluster starts its own snakemake for one file, without the name of the study.
        wanted = kind, name
        for study in () if wanted in self._named else (*self.settings.studies, *study_names()):
            with contextlib.suppress(PflpipeError):
                self.outline(study)
            if wanted in self._named:
                break
        if wanted not in self._named:
            # An id follows from code from outside: perhaps it was edited since the job was planned.
            for outline in self._outlines.values():
                list(map(self._digest, self.files_of(outline.everything.cells)))
            raise ConfigError(
                f"no study contains {name!r}", do="ask for results/tables/<study>.csv instead"
            )
        return self._named[wanted]

    # ------------------------------------------------------------ file names

    def study_files(self, name: str) -> list[str]:
        """Return the files that define a study: its own, the printed numbers if it uses them, and
        the choice of its search."""
        outline = self.outline(name)
        is_printed = any(row.paper_metric for row in outline.everything.rows)
        files = [_file(name)] + [f"{config.STUDIES}/{printed.FILE}"] * is_printed
        choice = f"{self.settings.results_dir}/searches/{name}.json"
        return files + [choice] * bool(outline.search)

    def scores(self, study: str) -> list[str]:
        """Return the score files of a study, or of its search."""
        base, _, part = study.partition("/")
        known = self.study(study) if part else self.outline(base).everything
        return [f"{self.settings.results_dir}/scores/{study}/{name}.csv" for name in known.methods]

    def tracked(self, study: str) -> list[str]:
        """Return the markers of a study's methods whose runs are in MLflow."""
        folder = f"{self.settings.results_dir}/tracking/{study}"
        return [f"{folder}/{method}.done" for method in self.outline(study).everything.methods]

    def figures(self, study: str) -> list[str]:
        """Return the figures of a study."""
        folder = f"{self.settings.results_dir}/figures/{study}"
        return [f"{folder}/{drawing.name}.png" for drawing in self.outline(study).figures]

    def drawing(self, study: str, name: str) -> Drawing:
        """Return a figure of a study by its name; raise ConfigError if there is none."""
        return drawings.find(self.outline(study), name)

    def audits(self, cells: Iterable[Cell]) -> list[str]:
        """Return the audits of the certified runs among the cells."""
        return self._audits(case.id for cell in cells for case in audits.of_cell(cell))

    def audits_of_methods(self) -> list[str]:
        """Return the audits of every version of the methods in the studies of config.yaml."""
        outlines = map(self.outline, self.settings.studies)
        drawn = any(c.training.sample_rate < 1 for o in outlines for c in o.everything.cells)
        return self._audits(one.case.id for one in audits.of_methods(self.methods(), drawn))

    def audits_of_rows(self) -> list[str]:
        """Return the audits of the releases of the studies of config.yaml, certified or not."""
        outlines = map(self.outline, self.settings.studies)
        cells = [cell for outline in outlines for cell in outline.everything.cells]
        return self._audits(one.case.id for one in audits.of_rows(cells))

    def all_audits(self) -> list[str]:
        """Return the audits of every distinct release of all methods."""
        return self._audits(audits.cases())

    def _audits(self, ids: Iterable[str]) -> list[str]:
        return [f"{self.settings.results_dir}/audits/{id}.json" for id in dict.fromkeys(ids)]

    def failures(self, study: str) -> int:
        """Return the number of failed exports of a study to MLflow, from the last marker.

        It is a parameter of the rule. A failed export changes it, so that Snakemake tries again; a
        successful one does not.
        """
        marker = self.settings.results_dir / "tracking" / f"{study}.done"
        text = marker.read_text(encoding="utf-8") if marker.exists() else ""
        before = re.search(r"^failed before: (\d+)$", text, re.MULTILINE)
        return (int(before[1]) if before else 0) + text.startswith("pending")

    # ------------------------------------------------------------ digests of code

    def code(self, script: str, files: Iterable[Path] = ()) -> str:
        """Return the digests of the code of a script in ``workflow/scripts``, with the parts of the
        package that it imports, and of ``files``, which it loads by name."""
        starts = [self.root / "workflow" / "scripts" / f"{script}.py", *files]
        return ", ".join(f"{start.name} {self._digest(start)}" for start in starts)

    def note(self, outlines: Iterable[Outline]) -> str:
        """Take the digests of all scripts and of these studies as they are now, and return those
        that jobs on a cluster have to verify, as JSON.

        An edit during the workflow must not count as the code that a job ran. Jobs on this machine
        run the code that was imported at the start (forks.py). Jobs on a cluster read all code
        again when they start, hours later, and Snakemake takes them for what it planned
        (snakemake#3234). They stop if a digest differs. Scripts that never run there are left out:
        the snakemake of a job also evaluates the rules before its own.

        Args:
            outlines: the requested studies.
        """
        folder = self.root / "workflow" / "scripts"
        scripts = {script.stem: script for script in folder.glob("*.py")}
        known = list(outlines)
        for script in scripts.values():
            self._digest(script)
        starts = {scripts[name] for name in ELSEWHERE if name in scripts}
        for outline in known:
            starts.update(self.files_of(outline.everything.cells))
            starts.update(
                metric_columns.files(outline.document, config.study_file(outline.name).parent)
            )
        digests = {self._place(start): self._digest(start) for start in sorted(starts)}
        digests |= {_file(outline.name): _cells_digest(outline) for outline in known}
        return json.dumps(digests)

    def training_code(self, cells: Iterable[Cell]) -> str:
        """Return the digests of the code that trains these cells."""
        return self.code("train", self.files_of(cells))

    def testing_code(self, study: str, cells: Iterable[Cell]) -> str:
        """Return the digests of the code that tests these cells of a study or of its search,
        and the names of the metrics."""
        name = study.partition("/")[0]
        document = self.outline(name).document
        own = metric_columns.files(document, config.study_file(name).parent)
        files = [*self.files_of(list(cells)), *own]
        code = self.code("evaluate", files)
        return " ".join([code, *document.get("metrics", ())])

    def files_of(self, cells: Iterable[Cell]) -> list[Path]:
        """Return the files of the methods of cells, and of the user's own networks and losses."""
        listed = list(cells)
        ours = {self._method_file(cell.method) for cell in listed if not cell.source}
        return sorted(ours.union(*map(row_code.files, listed)))

    def method_files(self, names: Iterable[str]) -> list[Path]:
        """Return the files of these methods of the package."""
        return sorted({self._method_file(name) for name in names})

    def style_files(self) -> list[Path]:
        """Return the style files of figures, which no import statement names."""
        return sorted((self.package / "report" / "figures").glob("*.mplstyle"))

    def source_files(self, dataset: str) -> tuple[list[Path], list[Path]]:
        """Return ([file], []) for a user's own arrays, which are an input, and ([], [file]) for the
        file of a user's function, which counts by its digest."""
        source = self.settings.datasets.get(dataset)
        return ([], []) if source is None else sources.files(source)

    def source_words(self, dataset: str) -> list[str]:
        """Return the words that name a user's own source to the script that reads it."""
        source = self.settings.datasets.get(dataset)
        return [] if source is None else ["--source", sources.text(source)]

    def _method_file(self, name: str) -> Path:
        return self.package / f"methods/{name}.py"

    def _digest(self, start: Path) -> str:
        if start not in self._digests:
            digest = meaning.digest(start, self.package)
            self._expect(self._place(start), digest)
            self._digests[start] = digest
        return self._digests[start]

    def _place(self, file: Path) -> str:
        """Return the path of a file relative to the root, the same on all machines."""
        return os.path.relpath(file, self.root)

    def _expect(self, file: str, digest: str) -> None:
        if self._noted.get(file, digest) != digest:
            raise ConfigError(
                f"{file}, or a file that it needs, was edited after this job was planned",
                do="when the snakemake that planned it has ended, give the same command again",
            )


def _file(study: str) -> str:
    return str(config.study_file(study))


def _cells_digest(outline: Outline) -> str:
    # Without its code, which has digests of its own.
    cells = sorted(replace(cell, digests={}).id for cell in outline.everything.cells)
    return hashlib.sha256(canonical_json(cells).encode()).hexdigest()[:10]


def link(folder: Path, copies: Path) -> None:
    """Make a folder of results a link to the local copies of what is in an object store.

    Raises:
        ConfigError: the folder has files of its own.
    """
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        raise ConfigError(
            f"{folder} is a folder of this disk, and `store` names an object store",
            do="copy its files to the store and remove it, or take another `results_dir`",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(os.path.relpath(copies, folder.parent))


_IDS: dict[str, Callable[[Cell], str]] = {
    "{cell}": lambda cell: cell.id,
    "{run}": registry.run_id,
    "{partition}": lambda cell: cell.partition_id,
    "{plan}": lambda cell: cell.plan_id,
    "{dataset}": lambda cell: cell.dataset,
    "{data}": lambda cell: cell.data_id,
}


def each(pattern: str, cells: Iterable[Cell]) -> list[str]:
    """Return the path of every cell, each path once.

    Args:
        pattern: a path with a name of ``_IDS``.
    """
    ((name, id_of),) = [item for item in _IDS.items() if item[0] in pattern]
    return list(dict.fromkeys(pattern.replace(name, id_of(cell)) for cell in cells))


def published(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells with the plans of a table's methods as published."""
    return list(filter(None, map(as_published, cells)))


def certified(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells whose runs are certified."""
    return [cell for cell in cells if cell.claim == "certified"]


def check_syntax(path: str) -> None:
    """Raise ConfigError if a file of settings is not a YAML mapping.

    Called before Snakemake reads it, which gives no line number and takes the last of two equal
    keys.
    """
    document = config.read(path)
    if not isinstance(document, dict):
        config.parse(document, path)


def partition_request(cell: Cell) -> str:
    """Return the JSON of a cell with only the settings that its partition depends on, the same for
    all cells that share it."""
    nothing = Model(""), Training(0, 0, 0, "", 0.0), Privacy()
    shared = Cell(cell.dataset, cell.partition, *nothing, method="", seed=cell.seed)
    return canonical_json(shared.to_dict())


def plan_request(cell: Cell) -> str:
    """Return the JSON of a cell with only the settings that its plan depends on, the same for all
    cells that share it."""
    return canonical_json(cell.accounted.to_dict())


def settings_words(settings: Mapping[str, object], file: Path) -> list[str]:
    """Return the command-line arguments that give snakemake these settings, where they differ from
    a file, config.yaml."""
    stored = read_yaml(str(file)) if file.exists() else {}
    stored = stored if isinstance(stored, dict) else {}
    changed = {key: value for key, value in settings.items() if stored.get(key, ...) != value}
    words = [f"{key}={json.dumps(value)}" for key, value in changed.items()]
    return ["--config", *words] if words else []
