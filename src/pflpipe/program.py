"""Start and end of a program: one line for a user's mistake, the exit code, and the resources
used."""

import argparse
import inspect
import os
import pwd
import re
import resource
import sys
import tempfile
import time
import types
import typing
from collections.abc import Callable
from typing import Any, NoReturn

from pflpipe.errors import ConfigError, PflpipeError
from pflpipe.files import write_text

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


def run_step(step: Callable[..., None]) -> NoReturn:
    """Run a step of the workflow and exit as ``run_script`` does.

    The command line follows from the signature of ``step``: ``--name`` for each parameter, with the
    type of its annotation (``str``, ``int``, ``float`` or ``Path``, one of these ``| None``, or a
    list of them, which takes several words). A parameter without a default is required.
    """
    parser = argparse.ArgumentParser(description=sys.modules[step.__module__].__doc__)
    for name, parameter in inspect.signature(step, eval_str=True).parameters.items():
        kind, options = parameter.annotation, dict[str, Any]()
        if isinstance(kind, types.UnionType):  # Path | None
            kind = typing.get_args(kind)[0]
        if typing.get_origin(kind) is list:
            kind, options["nargs"] = typing.get_args(kind)[0], "*"
        required = parameter.default is inspect.Parameter.empty
        options["default"] = None if required else parameter.default
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=required, **options)
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
