"""The declarations of a method file: ``ABOUT``, and the signature of its factory.

For the methods of the package both are read from the syntax tree, so that a study is checked
without torch, whose import takes seconds.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pflpipe.options import Declared, Option, declared, of_signature

Made = TypeVar("Made")
Count = Annotated[int, Option(least=1)]
"""A hyper-parameter that is a whole number of at least 1."""
Fraction = Annotated[float, Option(least=0, most=1)]
"""A hyper-parameter from 0 to 1, both included."""
NonNegative = Annotated[float, Option(least=0)]
"""A hyper-parameter of at least 0."""
NotTiny = Annotated[float, Option(least=1e-6)]
"""A hyper-parameter that something is divided by: at least 1e-6."""
Positive = Annotated[float, Option(above=0)]
"""A hyper-parameter above 0."""


@dataclass(frozen=True)
class About:
    """The facts that a method file declares about its method.

    Attributes:
        title: the method's name in print.
        paper: authors, venue, year.
        private: whether its releases are clipped and noised; otherwise the claim is ``none``.
        sends: whether anything leaves a client; otherwise the server takes no step.
        has_global_model: whether there is a server model to test.
        mechanism: the noise of its paper; its claims are audited with this noise.
        trains: another method with the same training, to the bit, at equal values of their common
            hyper-parameters. The two may differ in ``personalize`` only. Empty if there is none.
        public_scale: whether its uploads have a public scale, or parts that are no parameters: its
            release then has an audit of its own.
        needs: parts that a network must have: ``body`` (layers before the head), ``norm``
            (normalisation layers). Without them this would be another method. ``classes``: it is
            made for cross-entropy, and takes no other loss.
        departures: departures of both profiles, such as the weights of a non-private method.
        paper_departures: further departures of ``profile: paper``.
        official_departures: further departures of ``official_code: true``.
        official_defaults: hyper-parameter -> its default under ``official_code: true``, where that
            is another one.
        only_with: hyper-parameter -> departures that apply only if it is true.
        cost: training time per image relative to DP-FedAvg, which a second gradient, a second model
            or Fisher information increases. Measured as CPU time of cnn_cifar with two clients of
            500 images, four epochs and batches of 64, as in the papers
            (``tools/benchmarks/bench_rounds.py estimates``, AMD EPYC, 2026-11-25; repeated
            measurements differ by up to a fifth). With fewer epochs Fisher information has a larger
            share.
    """

    title: str
    paper: str
    private: bool = True
    sends: bool = True
    has_global_model: bool = True
    mechanism: str = "gaussian"
    trains: str = ""
    public_scale: bool = False
    needs: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    paper_departures: tuple[str, ...] = ()
    official_departures: tuple[str, ...] = ()
    official_defaults: Mapping[str, Any] = field(default_factory=dict)
    only_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cost: float = 1.0


@dataclass(frozen=True)
class Head:
    """How a client trains its head.

    Attributes:
        epochs: passes over the client's examples.
        lr, momentum, weight_decay: of the SGD of this phase.
        solver: sgd; ridge or newton solve exactly (heads.py), with the penalty ``weight_decay``,
            and read no other setting of this phase.
    """

    epochs: Count = 15
    lr: NonNegative = 0.01
    momentum: Fraction = 0.9
    weight_decay: NonNegative = 1e-4
    solver: Annotated[str, Option(choices=("sgd", "ridge", "newton"))] = "sgd"


def with_head(
    *, trained: bool = True, **defaults: Any
) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Return a decorator of factories that take ``head``, a ``Head``: for a study they have its
    options instead, ``head_epochs`` to ``head_solver``.

    Args:
        trained: whether training reads them, not only ``personalize``.
        defaults: where they differ from those of ``Head``.
    """

    def decorate(factory: Callable[..., Made]) -> Callable[..., Made]:
        @functools.wraps(factory)
        def made(*, head: Head = Head(**defaults), **values: Any) -> Made:
            own = {name: values.pop(name) for name in list(values) if name in options}
            return factory(head=replace(head, **{options[n]: own[n] for n in own}), **values)

        options = {f"head_{name}": name for name in declared(Head)}
        parameters = inspect.signature(factory, eval_str=True).parameters
        listed = [one for name, one in parameters.items() if name != "head"]
        for name, item in declared(Head).items():
            kind: Any = Annotated[item.type, replace(item.option, trained=trained)]
            default = defaults.get(name, item.default)
            one = parameters["head"].replace(name=f"head_{name}", default=default, annotation=kind)
            listed.append(one)
        made.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
        return made

    return decorate


def read(file: Path, name: str) -> tuple[About, dict[str, Declared]]:
    """Return ``ABOUT`` and the hyper-parameters of a method of the package, without importing it.

    Args:
        file: file of the method. Its ``ABOUT`` and the signature of its factory use only names of
            this module and builtins.
        name: name of the factory.
    """
    # Only these two statements are executed, without the file's imports and without any body.
    kept: list[ast.stmt] = []
    for statement in ast.parse(file.read_bytes()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="ABOUT")]):
                kept.append(statement)
            case ast.FunctionDef(name=function) if function == name:
                statement.body, statement.returns = [ast.Pass()], None
                kept.append(statement)
    names: dict[str, Any] = {
        "About": About,
        "Annotated": Annotated,
        "Count": Count,
        "Fraction": Fraction,
        "Head": Head,
        "Literal": Literal,
        "NonNegative": NonNegative,
        "NotTiny": NotTiny,
        "Option": Option,
        "Positive": Positive,
        "with_head": with_head,
    }
    module = ast.fix_missing_locations(ast.Module(kept, []))
    # A file of the package, of which two statements are left.
    exec(compile(module, file, "exec", dont_inherit=True), names)  # noqa: S102
    return names["ABOUT"], of_signature(inspect.signature(names[name]))
