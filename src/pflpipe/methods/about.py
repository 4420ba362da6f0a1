"""What a method file declares: ``ABOUT``, and the signature of its factory.

Of the package's own methods both are read from the syntax tree, so that a study is checked without
torch, whose import takes seconds.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pflpipe.options import Declared, Option, of_signature


@dataclass(frozen=True)
class About:
    """What a method file says about itself.

    Attributes:
        title: the method's name in print.
        paper: authors, venue, year.
        private: whether what it releases is clipped and noised (else the claim is ``none``).
        sends: whether anything leaves a client; else there is nothing that a server could step by.
        has_global_model: whether there is a server model to test.
        mechanism: the noise of its paper, with which its claims are audited.
        trains: the method whose training this one shares to the bit, given the hyper-parameters
            that the two have in common; empty when it has its own. It may then differ in
            ``personalize`` alone.
        needs: parts that a network must have, out of ``body`` (layers before the head) and ``norm``
            (normalisation layers), because without them the method is another one.
        departures: departures of both profiles (a non-private method's weights, say).
        paper_departures: further departures of ``profile: paper``.
        official_departures: further departures of ``official_code: true``.
        only_with: hyper-parameter -> those of its departures that happen only while it is true.
        cost: how many times as long as DP-FedAvg it trains on an image: a second gradient, a second
            model, or Fisher information by example. CPU time of cnn_cifar with two clients of 500
            images, four epochs and batches of 64, as in the papers (``benchmarks/bench_rounds.py
            estimates``, AMD EPYC, 2026-11-25; within a fifth of it when measured again). Fisher
            information weighs more in fewer epochs.
    """

    title: str
    paper: str
    private: bool = True
    sends: bool = True
    has_global_model: bool = True
    mechanism: str = "gaussian"
    trains: str = ""
    needs: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    paper_departures: tuple[str, ...] = ()
    official_departures: tuple[str, ...] = ()
    only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cost: float = 1.0


def read(file: Path, name: str) -> tuple[About, dict[str, Declared]]:
    """Return ``ABOUT`` and the hyper-parameters of a method of the package, without importing it.

    Args:
        file: of the method. Its ``ABOUT`` and the signature of its factory use no names but those
            of this module and Python's own.
        name: of the factory.
    """
    kept: list[ast.stmt] = []
    for statement in ast.parse(file.read_bytes()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="ABOUT")]):
                kept.append(statement)
            case ast.FunctionDef(name=found) if found == name:
                statement.body, statement.returns = [ast.Pass()], None
                kept.append(statement)
    names: dict[str, Any] = {
        "About": About,
        "Annotated": Annotated,
        "Literal": Literal,
        "Option": Option,
    }
    module = ast.fix_missing_locations(ast.Module(kept, []))
    # A file of the package, of which two statements are left.
    exec(compile(module, file, "exec", dont_inherit=True), names)  # nosec B102
    return names["ABOUT"], of_signature(inspect.signature(names[name]))
