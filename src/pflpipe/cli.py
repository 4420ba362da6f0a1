"""The console script ``pflpipe``. Heavy imports wait until a command needs them.

A command returns the lines that it prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from pflpipe import without_torch
from pflpipe.program import run_script


def main() -> NoReturn:
    """Entry point of the console script."""
    arguments = _parser().parse_args()

    def command() -> None:
        for line in without_torch.run(lambda: arguments.run(arguments)):
            print(line)

    run_script(command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pflpipe", description="Compare user-level private personalized federated learning."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    validate = commands.add_parser(
        "validate", help="check config.yaml, its studies and the headers of its data; start nothing"
    )
    validate.add_argument("--config", default="config.yaml", help="default: %(default)s")
    validate.add_argument(
        "--study",
        action="append",
        default=[],
        help="check this study instead of those of the config; repeatable",
    )
    validate.set_defaults(run=_validate)
    methods = commands.add_parser("methods", help="list the methods and their hyper-parameters")
    methods.set_defaults(run=_methods)
    studies = commands.add_parser("studies", help="list the studies")
    studies.set_defaults(run=_studies)
    rank = commands.add_parser(
        "rank", help="order a study's hyper-parameter sets by validation accuracy, best first"
    )
    rank.add_argument("study")
    rank.add_argument("--config", default="config.yaml", help="default: %(default)s")
    rank.add_argument(
        "--all", action="store_true", help="every set instead of the five best of each method"
    )
    rank.set_defaults(run=_rank)
    figures = commands.add_parser(
        "figures", help="draw a study's figures from finished results; start nothing"
    )
    figures.add_argument("study")
    figures.add_argument("name", nargs="*", help="of its figures; default: all")
    figures.add_argument("--results", type=Path, default=Path("results"), help="%(default)s")
    figures.add_argument("--data", type=Path, default=Path("data"), help="%(default)s")
    figures.add_argument("--out", type=Path, help="default: RESULTS/figures/STUDY")
    figures.set_defaults(run=_figures)
    return parser


def _validate(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study import config
    from pflpipe.study.check import validate

    settings = config.load(arguments.config)
    outlines = validate(settings, arguments.study)
    return [f"{name}: {outline}: ok" for name, outline in outlines.items()]


def _methods(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.methods import registry

    lines = []
    for name, source in registry.listed():
        entry = registry.info(name, source)
        about = entry.about
        origin = f", from {source}" if source else ""
        lines.append(f"{name}: {about.title} ({about.paper}){origin}")
        paper = about.departures + about.paper_departures
        profiles = {
            "strict": about.departures,
            "paper": paper,
            "paper, official code": paper + about.official_departures,
        }
        if not about.official_departures:
            del profiles["paper, official code"]
        for profile, found in profiles.items():
            claim = (
                "none (no privacy asked)"
                if not about.private
                else "nominal"
                if found
                else "certified"
            )
            departures = f"; departures {', '.join(found)}" if found else ""
            lines.append(f"    profile {profile}: claim {claim}{departures}")
        for key, parameter in entry.hyperparameters.items():
            lines.append(f"    {key} = {parameter.default!r}")
    return lines


def _studies(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study.load import load_outline, study_names

    outlines = [load_outline(name) for name in study_names()]
    return [f"{outline.name}: {outline.document['title']}\n    {outline}" for outline in outlines]


def _rank(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.study import config, load, ranking

    outline = load.load_outline(arguments.study)
    study = outline.search or outline.study()
    results = config.load(arguments.config).results_dir
    lines = list(ranking.lines(study, results / "scores" / study.name, 0 if arguments.all else 5))
    return lines + list(ranking.chosen(outline, load.chosen(outline, results)))


def _figures(arguments: argparse.Namespace) -> list[str]:
    from pflpipe.report.figures import registry
    from pflpipe.study import figures
    from pflpipe.study.load import load_study

    study = load_study(arguments.study, results=arguments.results)
    folder = arguments.out or arguments.results / "figures" / study.name
    names = arguments.name or [drawing.name for drawing in study.figures]
    drawings = [figures.find(study, name) for name in names]
    for drawing in drawings:
        target = folder / f"{drawing.name}.png"
        registry.write(study, drawing, arguments.results, arguments.data, target)
    return [f"{folder}/{drawing.name}.png, .svg, .pdf" for drawing in drawings]
