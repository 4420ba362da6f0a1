"""The console script ``pflpipe``. Heavy imports wait until a command needs them.

A command returns the lines that it prints.
"""

import argparse
import dataclasses
import shlex
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from pflpipe._version import __version__
from pflpipe.errors import ConfigError, PflpipeError, check_known
from pflpipe.program import Parser, options_of, run_script

Command = Callable[[argparse.Namespace], Iterable[str]]
SHELLS = ("bash", "zsh", "fish", "tcsh")
INSTALL = "pip install 'pflpipe[all]'"
GROUPS = {
    "from rows to a verdict": ("run", "quickstart", "ui", "report", "status"),
    "a study of your own": ("init", "data", "methods", "studies", "validate", "plan", "cost"),
    "its results": ("figures", "compare", "rank", "track", "flower"),
    "is the ε true?": ("audit", "certificate", "verify"),
    "your shell": ("completion",),
}
"""Heading -> commands, in the map of ``--help``."""
EXAMPLES = (
    "run patients.csv --user patient --label risk --epsilon 2,8",
    "plan my_study",
    "compare my_study:fedrep my_study:dp_fedavg",
    "audit my_release.py:release --clients 10 --noise-multiplier 1 --delta 1e-5",
    "completion bash",
)
"""One for each group."""


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
            if "config" in arguments:
                from pflpipe.study import config

                arguments.settings = config.load(arguments.config)
            for line in arguments.run(arguments):
                # A terminal may know only ASCII.
                print(line.encode(encoding, "replace").decode(encoding), flush=True)
        except ModuleNotFoundError as error:
            raise PflpipeError(
                f"Python module {error.name!r} is not installed", do=INSTALL
            ) from None

    run_script(command)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pflpipe",
        description="Compare user-level private personalized federated learning.",
        formatter_class=_Map,
    )
    parser.add_argument("--version", action="version", version=f"pflpipe {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(run: Command, help: str, *, config: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(run.__name__.strip("_"), help=help, description=help)
        command.set_defaults(run=run)
        if config:
            command.add_argument("--config", default="config.yaml", help="default: %(default)s")
        return command

    run = add(_run, "from a table of people, or a study, to a verdict", config=False)
    _add_study(run, "what", complete="tables", help="a table (.csv, .tsv, .parquet), or a study")
    run.add_argument("--user", default="", help="column that says whose row it is")
    run.add_argument("--label", default="", help="column of what is predicted")
    run.add_argument("--epsilon", default="2,8", help="budgets; default: %(default)s")
    minutes = "until no more seeds are added; default: %(default)s"
    run.add_argument("--minutes", type=float, default=3.0, help=minutes)
    run.add_argument("--name", default="", help="of the study; default: that of the file")
    run.add_argument("--yes", action="store_true", help="ask nothing")
    run.add_argument("--verbose", action="store_true", help="show Snakemake's lines")
    run.add_argument("--profile", default="", help="of Snakemake, such as profiles/slurm")
    add(_quickstart, "the default study, in any folder, to a verdict", config=False)
    init = add(_init, "write a new study: studies/<STUDY>.yaml, with comments", config=False)
    init.add_argument("study", nargs="?", help="its name: letters, digits and _")
    instead = "write a release for pflpipe audit instead: <STUDY>.py, by default my_release.py"
    init.add_argument("--audit", action="store_true", help=instead)
    validate = add(
        _validate, "check config.yaml, its studies and the headers of its data; start no job"
    )
    instead = "a study to check instead of those of config.yaml"
    _add_study(validate, nargs="*", help=instead)
    data = add(_data, "read a data set and show what is in it; start no job")
    known = "one of config.yaml, or one that pflpipe knows"
    _add_study(data, "name", complete="datasets", help=known)
    listed = "list the methods and their hyper-parameters, or print the cards of some"
    methods = add(_methods, listed, config=False)
    card = "print its card: formulas, claims, citation"
    _add_study(methods, "name", complete="methods", nargs="*", help=card)
    add(_studies, "list the studies by purpose, with runs and estimated training time")
    _add_study(add(_plan, "forecast a study's noise and cost; start no job"))
    cost = add(_cost, "estimate a study's CPU time and disk; start no job")
    _add_study(cost)
    ways = "for each way to submit it to SLURM"
    cost.add_argument("--cluster", action="store_true", help=ways)
    rank = add(
        _rank, "rank a study's hyper-parameter sets by validation accuracy, or its search's metric"
    )
    _add_study(rank)
    every_set = "all sets instead of the five best of each method"
    rank.add_argument("--all", action="store_true", help=every_set)
    figures = add(
        _figures, "draw a study's figures from finished results; start no job", config=False
    )
    _add_study(figures)
    figures.add_argument("name", nargs="*", help="a figure of the study; default: all")
    figures.add_argument("--results", type=Path, default=Path("results"), help="%(default)s")
    figures.add_argument("--data", type=Path, default=Path("data"), help="%(default)s")
    figures.add_argument("--out", type=Path, help="default: RESULTS/figures/STUDY")
    figures.add_argument(
        "--bare", action="store_true", help="without heading and note, which become a .txt"
    )
    shown = "write the verdict page of a study from finished results, and print its five lines"
    _add_study(add(_report, shown))
    live = "show the verdict page of a study in a browser, live while it trains"
    ui = add(_ui, live)
    _add_study(ui)
    ui.add_argument("--port", type=int, default=8000, help="of this machine; default: %(default)s")
    add(_status, "show the progress of the running workflow")
    _add_study(add(_track, "export a study's finished runs to MLflow"))
    compare = add(_compare, "compare two studies or two methods, with paired differences")
    for side in ("A", "B"):
        _add_study(compare, side, help="a study or a table's .csv, with :METHOD for one method")
    compare.add_argument("--metric", default="personal_own", help="default: %(default)s")
    flower = add(_flower, "write a Flower app of one run, which trains it on other machines")
    _add_study(flower)
    flower.add_argument("name", metavar="RUN", help="id of the run, a folder in results/runs")
    flower.add_argument("--nodes", type=int, default=3, help="default: %(default)s")
    flower.add_argument("--out", type=Path, help="default: flower/RUN")
    certificate = add(_certificate, "write the certificate of a study beside its table")
    _add_study(certificate)
    verify = add(_verify, "check a certificate; exit code 1 if something is refuted", config=False)
    verify.add_argument("file", type=Path)
    against = "also against the plans, runs, audits and searches of this folder"
    verify.add_argument("--results", type=Path, metavar="DIR", help=against)
    pins = "folder of data sets, with --results; default: %(default)s"
    verify.add_argument("--data", type=Path, default=Path("data"), help=pins)
    _add_claim(add(_audit, "attack a release of your own; exit code 1: refuted", config=False))
    completion = add(
        _completion, "print a completion script for a shell (docs/cli.md)", config=False
    )
    completion.add_argument("shell", choices=SHELLS)
    parser.epilog = "\n".join(_map(_commands(parser)))
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


def _map(commands: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    """Yield the commands in groups, with an example each."""
    for (heading, names), example in zip(GROUPS.items(), EXAMPLES, strict=True):
        yield f"{heading}:"
        yield from (f"  {name:12} {commands[name].description}" for name in names)
        yield f"    pflpipe {example}"


def _add_study(
    parser: argparse.ArgumentParser,
    name: str = "study",
    complete: str = "studies",
    **options: Any,
) -> None:
    """Add an argument that names a study, or what else shells complete (``_completion``)."""
    parser.add_argument(name, **options).complete = complete  # type: ignore[attr-defined]


def _add_claim(parser: argparse.ArgumentParser) -> None:
    """Add the release and the options of ``Claim``."""
    from pflpipe import options
    from pflpipe.auditing.claim import Claim
    from pflpipe.json_records import type_of

    parser.add_argument("release", metavar="FILE.py:NAME", help="a function or a class")
    texts = options.texts(Claim)
    for name, item in options.declared(Claim).items():
        required = item.default is dataclasses.MISSING
        default = "" if required or item.default is None else f"; default: {item.default}"
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type_of(item.type)[0],
            choices=item.option.choices or None,
            required=required,
            default=argparse.SUPPRESS,
            help=texts[name] + default,
        )
    effort = "estimate of what each level of the attack may take; default: %(default)s"
    parser.add_argument("--seconds", type=float, default=60.0, help=effort)
    parser.add_argument("--fields", action="store_true", help="print all fields of its row")


def _run(arguments: argparse.Namespace) -> Iterator[str]:
    from pflpipe.pipeline import run

    asked = not arguments.yes and sys.stdin.isatty()
    wish = run.Wish(
        arguments.what,
        arguments.user,
        arguments.label,
        arguments.epsilon,
        arguments.minutes,
        arguments.name,
        arguments.profile,
        run.typed if asked else None,
        arguments.verbose,
    )
    return run.lines(wish)


def _quickstart(arguments: argparse.Namespace) -> Iterator[str]:
    from pflpipe.files import write_text
    from pflpipe.pipeline import project, run

    for name in ("config.yaml", "studies/quickstart.yaml"):
        if not Path(name).exists():
            write_text(Path(name), (project.SHIPPED / name).read_text(encoding="utf-8"))
            yield f"{name}: written"
    yield from run.lines(run.Wish("quickstart"))


def _init(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study import init

    if arguments.audit:
        file = init.write_release(arguments.study or "my_release")
        options = "--clients 10 --noise-multiplier 1 --delta 1e-5"
        return [f"{file}: written", f"next: {_typed('pflpipe')} audit {file}:release {options}"]
    if arguments.study is None:
        raise ConfigError("init", got="no name", expected="a name for the study")
    files = init.write(arguments.study)
    return [
        *(f"{file}: written" for file in files),
        f"next: {_typed('pflpipe')} validate {arguments.study}",
        f"then: {_typed('pflpipe')} run {arguments.study}",
    ]


def _typed(program: str) -> str:
    """Return what to type for a program of this environment: its name if that is on PATH, or its
    path."""
    file = Path(sys.executable).with_name(program)
    if (found := shutil.which(program)) and Path(found).resolve() == file.resolve():
        return program
    here = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return shlex.quote(str(here))


def _validate(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study import catalog, forecast
    from pflpipe.study.check import unused_data, validate

    outlines = validate(arguments.settings, arguments.study)
    lines, header = [], catalog.headers(arguments.settings)
    for name, outline in outlines.items():
        lines += [f"{name}: {outline}: ok", *forecast.hopeless(outline, header)]
    if not arguments.study:
        lines += unused_data(arguments.settings, outlines.values())
    return lines


def _data(arguments: argparse.Namespace) -> Iterator[str]:
    from pflpipe.study import contents

    return contents.lines(arguments.name, arguments.settings)


def _methods(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.code.dependencies import claim_of
    from pflpipe.methods import registry, row_code

    if arguments.name:
        from pflpipe.report import cards

        return ["\n\n".join(map(cards.card, arguments.name))]
    lines = []
    for name, source in registry.listed():
        entry = registry.info(name, source)
        about = entry.about
        origin = f", from {source}" if source else ""
        lines.append(f"{name}: {about.title} ({about.paper}){origin}")
        paper = about.departures + about.paper_departures
        profiles = {"strict": about.departures, "paper": paper}
        if about.official_departures:
            profiles["paper, official code"] = paper + about.official_departures
        for profile, names in profiles.items():
            claim = "none (no privacy asked)"
            if about.private:
                claim = claim_of(about.mechanism, names, row_code.of_method(name, source))
            departures = f"; departures {', '.join(names)}" if names else ""
            lines.append(f"    profile {profile}: claim {claim}{departures}")
        for key, parameter in entry.hyperparameters.items():
            lines.append(f"    {key} = {parameter.default!r}")
    return lines


def _studies(arguments: argparse.Namespace) -> Iterable[str]:
    from pflpipe.study import catalog

    return catalog.lines(arguments.settings)


def _plan(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study import forecast

    found = forecast.forecast(arguments.study, settings=arguments.settings)
    return list(forecast.lines(found))


def _cost(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study import cost

    return list(cost.lines(arguments.study, arguments.settings, arguments.cluster))


def _rank(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study import load, ranking

    outline = load.load_outline(arguments.study)
    study = outline.search or outline.study()
    results = arguments.settings.results_dir
    lines: list[str] = []
    # A private search publishes its choice, not the other trials.
    if not outline.private_search:
        scores = results / "scores" / study.name
        lines += ranking.lines(study, scores, 0 if arguments.all else 5)
    return lines + list(ranking.chosen(outline, load.chosen(outline, results)))


def _figures(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.report.attacks import kinds as attacks
    from pflpipe.report.figures import kinds
    from pflpipe.study import figures
    from pflpipe.study.load import load_study

    study = load_study(arguments.study, results=arguments.results)
    folder = arguments.out or arguments.results / "figures" / study.name
    drawings = [figures.find(study, name) for name in arguments.name] or study.figures
    results, bare = arguments.results, arguments.bare
    for drawing in drawings:
        target = folder / f"{drawing.name}.png"
        if drawing.kind in figures.ATTACKS:
            attacks.write(study, drawing, results, target, bare)
        else:
            kinds.write(study, drawing, results, arguments.data, target, bare=bare)
    kinds = ".png, .svg, .pdf" + ", .txt" * bare
    return [f"{folder}/{drawing.name}{kinds}" for drawing in drawings]


def _report(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.pipeline import run, run_summary
    from pflpipe.study import load

    outline, results = load.load_outline(arguments.study), arguments.settings.results_dir
    page = run.write_page(outline, results)
    return [*run_summary.of_study(outline, results), f"the verdict page: {page}"]


def _ui(arguments: argparse.Namespace) -> Iterator[str]:
    from pflpipe.pipeline import ui

    return ui.lines(arguments.study, arguments.port, arguments.settings)


def _status(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.pipeline import status

    return list(status.lines(arguments.settings))


def _track(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.pipeline import mlflow_export

    return [mlflow_export.track(arguments.study, arguments.settings)]


def _compare(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.report import compare

    results = arguments.settings.results_dir
    return list(compare.lines(arguments.A, arguments.B, results, arguments.metric))


def _flower(arguments: argparse.Namespace) -> Iterator[str]:
    from pflpipe.pipeline import flower

    wish = arguments.study, arguments.name, arguments.nodes, arguments.out
    return flower.lines(*wish, arguments.settings)


def _certificate(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.pipeline import certificate
    from pflpipe.study import load

    settings = arguments.settings
    study = load.load_study(arguments.study, results=settings.results_dir)
    file = certificate.write(study, settings.results_dir, settings.data_dir)
    return [f"{file}: written", f"next: {_typed('pflpipe')} verify {file}"]


def _verify(arguments: argparse.Namespace) -> Iterator[str]:
    from pflpipe.checking import verify
    from pflpipe.pipeline import settled

    if arguments.results is None:
        found = settled.findings(arguments.file)
        yield from [*map(str, found), verify.unchecked()]
    else:
        from pflpipe.pipeline import evidence  # needs pandas and torch

        found = evidence.findings(arguments.file, arguments.results, arguments.data)
        yield from map(str, found)
    settled.require_unrefuted(found, arguments.file)


def _audit(arguments: argparse.Namespace) -> Iterator[str]:
    from pflpipe.auditing.audit import audit
    from pflpipe.auditing.claim import Claim
    from pflpipe.code import user_files

    names = (field.name for field in dataclasses.fields(Claim))
    claim = Claim(**{name: vars(arguments)[name] for name in names if name in arguments})
    release = user_files.load(arguments.release)
    file, seconds = str(user_files.file_of(arguments.release)), arguments.seconds
    audited = audit(release, claim, file=file, seconds=seconds)
    yield str(audited) if arguments.fields else "\n".join(audited.said)
    if audited.verdict != "kept":
        sys.exit(1)


def _completion(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.pipeline import completion

    parser = _parser()
    return [completion.script(parser, _commands(parser).values(), arguments.shell)]
