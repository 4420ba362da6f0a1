"""Start and end of a program: its command line, one line for a user's mistake, the exit code, and
the resources used."""

import argparse
import dataclasses
import inspect
import os
import pwd
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NoReturn

from pflpipe import options
from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.files import write_text
from pflpipe.json_records import type_of

MEASURES = "PFLPIPE_MEASURES"
"""Environment variable: file for the resources that a script used; if unset, none is written."""

KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**28), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""Environment variables, read by glibc when a process starts, with which it keeps freed memory.

A step of many small models frees a few megabytes and allocates them again. The system clears every
returned page, which takes a tenth of the time of such a run. Blocks of 32 MB and more, the limit of
mallopt(3), are still returned. Other C libraries ignore these variables."""


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as ConfigError."""
        raise ConfigError(f"{self.prog}: {message}", do=f"{self.prog} --help shows all")


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a parser."""
    return ["--help", *re.findall(r"(?<![\w-])--?\w[\w-]*", parser.format_usage())]


def add_argument(
    parser: argparse.ArgumentParser,
    item: options.Declared,
    text: str = "",
    *,
    is_word: bool = False,
) -> None:
    """Add what is typed for a parameter of a function: ``--name`` with a value.

    The value has the type of the annotation: ``str``, ``int``, ``float``, ``Path``, a ``NewType``
    of text or a ``Literal``, one of these ``| None``, or a list or tuple of them, which takes
    several words. A ``bool`` has no value. A parameter without a default is required.

    Args:
        text: its help.
        is_word: whether the value stands alone, without ``--name``.
    """
    kind, inner, _ = type_of(item.type)
    required = item.default in (dataclasses.MISSING, inspect.Parameter.empty)
    how: dict[str, Any] = {"type": inner or kind, "choices": item.option.choices or None}
    if kind is bool:
        how = {"action": "store_true"}
    elif kind in (list, tuple):
        how["nargs"] = "*"
    elif is_word and not required:
        how["nargs"] = "?"
    if not required:
        how["default"] = item.default
        if kind is not bool and item.default not in (None, "", ()):
            text = "; ".join(filter(None, [text, "default: %(default)s"]))
    if is_word:
        parser.add_argument(item.name, help=text, **how)
    else:
        name = f"--{item.name.replace('_', '-')}"
        parser.add_argument(name, required=required, help=text, **how)


def run_step(step: Callable[..., None]) -> NoReturn:
    """Run a step of the workflow and exit as ``run_script`` does.

    The command line follows from the signature of ``step``: ``--name`` for each parameter.
    """
    parser = argparse.ArgumentParser(description=sys.modules[step.__module__].__doc__)
    for item in options.of_signature(inspect.signature(step, eval_str=True)).values():
        add_argument(parser, item)
    arguments = vars(parser.parse_args())
    run_script(lambda: step(**arguments))


def run_script(main: Callable[[], None]) -> NoReturn:
    """Run a script's ``main`` and exit with 0, with 2 and one line per mistake of the user, or with
    130 for Ctrl-C.

    Any other exception keeps its traceback, because it is a bug of pflpipe.
    """
    began = time.perf_counter()
    name_user()
    try:
        main()
        write_measures(time.perf_counter() - began)
    except PflpipeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError as error:
        print(f"error: out of memory; {error or 'give the job more'}", file=sys.stderr)
        sys.exit(PflpipeError.exit_code)
    except BrokenPipeError:  # the reader of the output has closed it (`pflpipe methods | head`)
        # Otherwise Python would report the broken pipe once more at exit.
        sys.stderr.close()
        sys.exit(1)
    sys.exit(0)


def name_user() -> None:
    """Give a user that the system does not know, as in a container, a name and a home for the
    libraries that ask for them."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("LOGNAME", str(os.getuid()))
        os.environ.setdefault("HOME", tempfile.gettempdir())


def write_measures(seconds: float) -> None:
    """Write seconds, largest resident set (MB) and CPU seconds of this process, if ``MEASURES`` is
    set.

    If processes share a run, only the first one writes. Snakemake's benchmarks are not used,
    because they measure the processes that Snakemake started, and a script may be a fork of another
    process (pipeline/forks.py).
    """
    file = os.environ.get(MEASURES)
    if not file or os.environ.get("RANK", "0") != "0":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Kilobytes, but bytes on macOS.
    megabytes = used.ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    cpu = used.ru_utime + used.ru_stime
    write_text(file, f"s\tmax_rss\tcpu_time\n{seconds:.2f}\t{megabytes:.1f}\t{cpu:.2f}\n")
