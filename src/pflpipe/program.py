"""How a program begins and ends: with memory that it keeps, one line for a user's mistake, an exit
code, and what it took."""

from __future__ import annotations

import argparse
import ctypes
import inspect
import os
import resource
import sys
import time
import types
import typing
from collections.abc import Callable
from typing import Any, NoReturn

from pflpipe.errors import PflpipeError
from pflpipe.files import write_text

MEASURES = "PFLPIPE_MEASURES"
"""Environment variable: the file for what a script took; none without it."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT_BYTES, KEPT_BLOCK = 2**28, 2**25
"""Bytes that glibc keeps at most at the end of its heap, and bytes of a block that it does not take
from there."""


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
    words = vars(parser.parse_args())
    run_script(lambda: step(**words))


def run_script(main: Callable[[], None]) -> NoReturn:
    """Run a script's ``main`` and exit: 0, or 2 with one line for each of a user's mistakes, or 130
    for Ctrl-C.

    Any other exception keeps its traceback, because it is a bug of pflpipe.
    """
    began = time.perf_counter()
    keep_memory()
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
    except BrokenPipeError:  # the reader of our output left (`pflpipe methods | head`)
        sys.stderr.close()
        sys.exit(1)
    sys.exit(0)


def keep_memory() -> None:
    """Have glibc keep what is freed instead of giving it back to the system at once.

    A step of many small models frees a few megabytes and takes as many again, and the system clears
    every page that comes back: a tenth of the time of such a run. Blocks of 32 MB and more, the
    most that mallopt(3) takes, go back as ever. Other C libraries do as they do.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((M_TRIM_THRESHOLD, KEPT_BYTES), (M_MMAP_THRESHOLD, KEPT_BLOCK)):
            mallopt(option, value)


def write_measures(seconds: float) -> None:
    """Write seconds, largest resident set (MB) and CPU seconds of this process, if somebody asked.

    Of the processes that share a run the first one does. Not Snakemake's own benchmarks, which look
    at the processes that Snakemake started: a script may be another one's fork (pipeline/forks.py).
    """
    file = os.environ.get(MEASURES)
    if not file or os.environ.get("RANK", "0") != "0":
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Kilobytes, but bytes on macOS.
    megabytes = used.ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    cpu = used.ru_utime + used.ru_stime
    write_text(file, f"s\tmax_rss\tcpu_time\n{seconds:.2f}\t{megabytes:.1f}\t{cpu:.2f}\n")
