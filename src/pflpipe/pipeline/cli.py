"""The console script ``pflpipe``. Heavy imports wait until a command needs them.

A command is a function that returns the lines that it prints. Its signature and its docstring are
its command line: parameters before the star are words, those behind it options, and its first
sentence and ``Args`` are the help (``_add``). Help has no full stop.
"""

import argparse
import inspect
import shlex
import shutil
import sys
import typing
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NewType, NoReturn

from pflpipe import options
from pflpipe._version import __version__
from pflpipe.errors import ConfigError, PflpipeError, check_known
from pflpipe.program import Parser, add_argument, options_of, run_script

if typing.TYPE_CHECKING:
    from pflpipe.study.config import Config

Command = Callable[..., Iterable[str]]
# What a word names, by which shells complete it (``_completion``).
Study = NewType("Study", str)
Side = NewType("Side", str)
TableOrStudy = NewType("TableOrStudy", str)
Method = NewType("Method", str)
Dataset = NewType("Dataset", str)
Shell = Literal["bash", "zsh", "fish", "tcsh"]
INSTALL = "pip install 'pflpipe[all]'"


def main() -> NoReturn:
    """Entry point of the console script."""
    parser = _parser()
    encoding = sys.stdout.encoding or "utf-8"

    def command() -> None:
        commands = _commands(parser)
        for name in sys.argv[1:2]:
            check_known(name, [*commands, *options_of(parser)], "unknown command")
        arguments, unknown = parser.parse_known_args()
        for name in unknown[:1]:
            chosen = commands[arguments.command]
            what = f"{chosen.prog}: unknown {'option' if name.startswith('-') else 'argument'}"
            check_known(name.partition("=")[0], options_of(chosen), what)
        try:
            for line in _called(arguments):
                # A terminal may know only ASCII.
                print(line.encode(encoding, "replace").decode(encoding), flush=True)
        except ModuleNotFoundError as error:
            raise PflpipeError(
                f"Python module {error.name!r} is not installed", do=INSTALL
            ) from None

    run_script(command)


def _called(arguments: argparse.Namespace) -> Iterable[str]:
    """Call the command with its arguments and the settings of its config.yaml."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value  # of several words
        for name, value in vars(arguments).items()
    }
    command: Command = given.pop("function")
    del given["command"]
    if "config" in given:
        from pflpipe.study import config

        given["config"] = config.load(given["config"])
    return command(**given)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pflpipe",
        description="Compare user-level private personalized federated learning.",
        formatter_class=_Map,
    )
    parser.add_argument("--version", action="version", version=f"pflpipe {__version__}")
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    lines = []
    for heading, (example, commands) in GROUPS.items():
        lines.append(f"{heading}:")
        for function in commands:
            command = _add(added, function)
            lines.append(f"  {command.prog.split()[-1]:12} {command.description}")
        lines.append(f"    pflpipe {example}")
    parser.epilog = "\n".join(lines)
    return parser


class _Map(argparse.RawDescriptionHelpFormatter):
    """Help whose commands stand in the map below alone."""

    def _iter_indented_subactions(
        self, action: argparse.Action
    ) -> Generator[argparse.Action, None, None]:
        yield from ()


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices


def _add(commands: Any, function: Command) -> argparse.ArgumentParser:
    """Add the command line of a function.

    ``config`` is the file of the settings that the function takes, and keywords without a name are
    the fields of a ``Claim``.
    """
    about, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    texts = {name: text for name, text, _ in options.items_of(rest)}
    about = f"{about[:1].lower()}{about[1:]}".removesuffix(".")
    name = function.__name__.strip("_")
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(function=function)
    signature = inspect.signature(function)
    for item in options.of_signature(signature).values():
        kind = signature.parameters[item.name].kind
        if item.name == "config":
            parser.add_argument("--config", default="config.yaml", help="default: %(default)s")
        elif kind is inspect.Parameter.VAR_KEYWORD:
            from pflpipe.auditing.claim import Claim

            of_claim = options.texts(Claim)
            for field in options.declared(Claim).values():
                add_argument(parser, field, of_claim[field.name])
        else:
            is_word = kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            add_argument(parser, item, texts.get(item.name, ""), is_word=is_word)
    return parser


# ---------------------------------------------------------------- from rows to a verdict


def _run(
    what: TableOrStudy,
    *,
    user: str = "",
    label: str = "",
    epsilon: str = "2,8",
    minutes: float = 3.0,
    name: str = "",
    yes: bool = False,
    verbose: bool = False,
    profile: str = "",
) -> Iterator[str]:
    """From a table of people, or a study, to a verdict.

    Args:
        what: a table (.csv, .tsv, .parquet), or a study
        user: column that says whose row it is
        label: column of what is predicted
        epsilon: budgets
        minutes: until no more seeds are added
        name: of the study; default: that of the file
        yes: ask nothing
        verbose: show Snakemake's lines
        profile: of Snakemake, such as profiles/slurm
    """
    from pflpipe.pipeline import run

    ask = run.typed if not yes and sys.stdin.isatty() else None
    wish = run.Wish(what, user, label, epsilon, minutes, name, profile, ask, verbose)
    return run.lines(wish)


def _quickstart() -> Iterator[str]:
    """The default study, in any folder, to a verdict."""
    from pflpipe.files import write_text
    from pflpipe.pipeline import project, run

    for name in ("config.yaml", "studies/quickstart.yaml"):
        if not Path(name).exists():
            write_text(Path(name), (project.SHIPPED / name).read_text(encoding="utf-8"))
            yield f"{name}: written"
    yield from run.lines(run.Wish("quickstart"))


def _ui(study: Study, *, port: int = 8000, config: "Config") -> Iterator[str]:
    """Show the verdict page of a study in a browser, live while it trains.

    Args:
        port: of this machine
    """
    from pflpipe.pipeline import ui

    return ui.lines(study, port, config)


def _report(study: Study, *, config: "Config") -> Iterator[str]:
    """Write the verdict page of a study from finished results, and print its five lines."""
    from pflpipe.pipeline import run, run_summary
    from pflpipe.study import load

    outline, results = load.load_outline(study), config.results_dir
    page = run.write_page(outline, results)
    yield from run_summary.of_study(outline, results)
    yield f"the verdict page: {page}"


def _status(*, config: "Config") -> list[str]:
    """Show the progress of the running workflow."""
    from pflpipe.pipeline import status

    return list(status.lines(config))


# ---------------------------------------------------------------- a study of your own


def _init(study: str | None = None, *, audit: bool = False) -> Iterator[str]:
    """Write a new study: studies/<STUDY>.yaml, with comments.

    Args:
        study: its name: letters, digits and _
        audit: write a release for pflpipe audit instead: <STUDY>.py, by default my_release.py
    """
    from pflpipe.study import init

    if audit:
        file = init.write_release(study or "my_release")
        claim = "--clients 10 --noise-multiplier 1 --delta 1e-5"
        yield f"{file}: written"
        yield f"next: {_typed('pflpipe')} audit {file}:release {claim}"
        return
    if study is None:
        raise ConfigError("init", got="no name", expected="a name for the study")
    yield from (f"{file}: written" for file in init.write(study))
    yield f"next: {_typed('pflpipe')} validate {study}"
    yield f"then: {_typed('pflpipe')} run {study}"


def _typed(program: str) -> str:
    """Return what to type for a program of this environment: its name if that is on PATH, or its
    path."""
    file = Path(sys.executable).with_name(program)
    if (found := shutil.which(program)) and Path(found).resolve() == file.resolve():
        return program
    here = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return shlex.quote(str(here))


def _data(name: Dataset, *, config: "Config") -> Iterator[str]:
    """Read a data set and show what is in it; start no job.

    Args:
        name: one of config.yaml, or one that pflpipe knows
    """
    from pflpipe.study import contents

    return contents.lines(name, config)


def _methods(name: tuple[Method, ...] = ()) -> Iterator[str]:
    """List the methods and their hyper-parameters, or print the cards of some.

    Args:
        name: print its card: formulas, claims, citation
    """
    from pflpipe.code.dependencies import claim_of
    from pflpipe.methods import registry, row_code

    if name:
        from pflpipe.report import cards

        yield "\n\n".join(map(cards.card, name))
        return
    for method, source in registry.listed():
        entry = registry.info(method, source)
        about = entry.about
        origin = f", from {source}" if source else ""
        yield f"{method}: {about.title} ({about.paper}){origin}"
        paper = about.departures + about.paper_departures
        profiles = {"strict": about.departures, "paper": paper}
        if about.official_departures:
            profiles["paper, official code"] = paper + about.official_departures
        for profile, names in profiles.items():
            claim = "none (no privacy asked)"
            if about.private:
                claim = claim_of(about.mechanism, names, row_code.of_method(method, source))
            departures = f"; departures {', '.join(names)}" if names else ""
            yield f"    profile {profile}: claim {claim}{departures}"
        for key, parameter in entry.hyperparameters.items():
            yield f"    {key} = {parameter.default!r}"


def _studies(*, config: "Config") -> Iterable[str]:
    """List the studies by purpose, with runs and estimated training time."""
    from pflpipe.study import catalog

    return catalog.lines(config)


def _validate(study: tuple[Study, ...] = (), *, config: "Config") -> Iterator[str]:
    """Check config.yaml, its studies and the headers of its data; start no job.

    Args:
        study: a study to check instead of those of config.yaml
    """
    from pflpipe.study import catalog, forecast
    from pflpipe.study.check import unused_data, validate

    outlines, header = validate(config, study), catalog.headers(config)
    for name, outline in outlines.items():
        yield f"{name}: {outline}: ok"
        yield from forecast.hopeless(outline, header)
    if not study:
        yield from unused_data(config, outlines.values())


def _plan(study: Study, *, config: "Config") -> Iterator[str]:
    """Forecast a study's noise and cost; start no job."""
    from pflpipe.study import forecast

    return forecast.lines(forecast.forecast(study, settings=config))


def _cost(study: Study, *, cluster: bool = False, config: "Config") -> Iterator[str]:
    """Estimate a study's CPU time and disk; start no job.

    Args:
        cluster: for each way to submit it to SLURM
    """
    from pflpipe.study import cost

    return cost.lines(study, config, cluster)


# ---------------------------------------------------------------- its results


def _figures(
    study: Study,
    name: tuple[str, ...] = (),
    *,
    results: Path = Path("results"),
    data: Path = Path("data"),
    out: Path | None = None,
    bare: bool = False,
) -> Iterator[str]:
    """Draw a study's figures from finished results; start no job.

    Args:
        name: a figure of the study; default: all
        out: default: RESULTS/figures/STUDY
        bare: without heading and note, which become a .txt
    """
    from pflpipe.report.attacks import kinds as attacks
    from pflpipe.report.figures import kinds
    from pflpipe.study import figures
    from pflpipe.study.load import load_study

    loaded = load_study(study, results=results)
    folder = out or results / "figures" / study
    drawings = [figures.find(loaded, one) for one in name] or loaded.figures
    for drawing in drawings:
        target = folder / f"{drawing.name}.png"
        if drawing.kind in figures.ATTACKS:
            attacks.write(loaded, drawing, results, target, bare)
        else:
            kinds.write(loaded, drawing, results, data, target, bare=bare)
        yield f"{folder}/{drawing.name}.png, .svg, .pdf" + ", .txt" * bare


def _compare(A: Side, B: Side, *, metric: str = "personal_own", config: "Config") -> list[str]:
    """Compare two studies or two methods, with paired differences.

    Args:
        A: a study or a table's .csv, with :METHOD for one method
        B: a study or a table's .csv, with :METHOD for one method
    """
    from pflpipe.report import compare

    return list(compare.lines(A, B, config.results_dir, metric))


def _rank(study: Study, *, all: bool = False, config: "Config") -> list[str]:
    """Rank a study's hyper-parameter sets by validation accuracy, or its search's metric.

    Args:
        all: all sets instead of the five best of each method
    """
    from pflpipe.study import load, ranking

    outline, results = load.load_outline(study), config.results_dir
    ranked = outline.search or outline.study()
    scores = results / "scores" / ranked.name
    # A private search publishes its choice, not the other trials.
    is_shown = not outline.private_search
    lines = list(ranking.lines(ranked, scores, 0 if all else 5)) if is_shown else []
    return [*lines, *ranking.chosen(outline, load.chosen(outline, results))]


def _track(study: Study, *, config: "Config") -> Iterator[str]:
    """Export a study's finished runs to MLflow."""
    from pflpipe.pipeline import mlflow_export

    yield mlflow_export.track(study, config)


def _flower(
    study: Study, RUN: str, *, nodes: int = 3, out: Path | None = None, config: "Config"
) -> Iterator[str]:
    """Write a Flower app of one run, which trains it on other machines.

    Args:
        RUN: id of the run, a folder in results/runs
        out: default: flower/RUN
    """
    from pflpipe.pipeline import flower

    return flower.lines(study, RUN, nodes, out, config)


# ---------------------------------------------------------------- is the epsilon true?


def _audit(
    release: str, *, seconds: float = 60.0, fields: bool = False, **claim: Any
) -> Iterator[str]:
    """Attack a release of your own; exit code 1: refuted.

    Args:
        release: a function or a class, FILE.py:NAME
        seconds: estimate of what each level of the attack may take
        fields: print all fields of its row
    """
    from pflpipe.auditing.audit import audit
    from pflpipe.auditing.claim import Claim
    from pflpipe.code import user_files

    claimed, loaded = Claim(**claim), user_files.load(release)
    file = str(user_files.file_of(release))
    audited = audit(loaded, claimed, file=file, seconds=seconds)
    yield str(audited) if fields else "\n".join(audited.said)
    if audited.verdict != "kept":
        sys.exit(1)


def _certificate(study: Study, *, config: "Config") -> Iterator[str]:
    """Write the certificate of a study beside its table."""
    from pflpipe.pipeline import certificate
    from pflpipe.study.load import load_study

    loaded = load_study(study, results=config.results_dir)
    file = certificate.write(loaded, config.results_dir, config.data_dir)
    yield f"{file}: written"
    yield f"next: {_typed('pflpipe')} verify {file}"


def _verify(file: Path, *, results: Path | None = None, data: Path = Path("data")) -> Iterator[str]:
    """Check a certificate; exit code 1 if something is refuted.

    Args:
        results: also against the plans, runs, audits and searches of this folder
        data: folder of data sets, with --results
    """
    from pflpipe.checking import verify
    from pflpipe.pipeline import settled

    if results is None:
        found = settled.findings(file)
        yield from [*map(str, found), verify.unchecked()]
    else:
        from pflpipe.pipeline import evidence  # needs pandas and torch

        found = evidence.findings(file, results, data)
        yield from map(str, found)
    settled.require_unrefuted(found, file)


# ---------------------------------------------------------------- your shell


def _completion(shell: Shell) -> Iterator[str]:
    """Print a completion script for a shell (docs/cli.md)."""
    import shtab

    from pflpipe.facts.datasets import DATASETS
    from pflpipe.methods.registry import NAMES

    # Commands of the shell that list names.
    studies = (
        "ls studies studies/papers 2>/dev/null | sed -n 's/[.]yaml$//p' | grep -v '^paper_results$'"
    )
    own = r"sed -n '/^datasets:/,/^[a-z]/s/^  \([a-z0-9_]*\):.*/\1/p' config.yaml 2>/dev/null"
    listed: dict[Any, str] = {
        Study: studies,
        Side: studies,
        TableOrStudy: f"{studies}; ls *.csv *.tsv *.parquet 2>/dev/null",
        Method: f"echo {' '.join(NAMES)}",
        Dataset: f"echo {' '.join(DATASETS)}; {own}",
    }
    parser = _parser()
    for command in _commands(parser).values():
        for action in command._actions:
            if names := listed.get(action.type):
                action.complete = shtab.cmd(names)  # type: ignore[attr-defined]
    yield shtab.complete(parser, shell)


GROUPS: dict[str, tuple[str, tuple[Command, ...]]] = {
    "from rows to a verdict": (
        "run patients.csv --user patient --label risk --epsilon 2,8",
        (_run, _quickstart, _ui, _report, _status),
    ),
    "a study of your own": (
        "plan my_study",
        (_init, _data, _methods, _studies, _validate, _plan, _cost),
    ),
    "its results": (
        "compare my_study:fedrep my_study:dp_fedavg",
        (_figures, _compare, _rank, _track, _flower),
    ),
    "is the ε true?": (
        "audit my_release.py:release --clients 10 --noise-multiplier 1 --delta 1e-5",
        (_audit, _certificate, _verify),
    ),
    "your shell": ("completion bash", (_completion,)),
}
"""Heading -> an example, and the commands, in the map of ``--help``."""
