"""Scripts in forks of a process that has imported what they import.

A new interpreter imports torch for two or three seconds, which is most of a job on small data. So
one process imports it once, while Snakemake goes to work, and forks for every script. Snakemake
starts a small program (``forked.py``) that hands its words, folder, environment and output to that
process, waits, and ends as the script ended. What is imported stays as it was when Snakemake
started, whatever is edited while it works.

The process is an optimisation, and its end fails no job: a fork answers its caller by itself, and a
caller that finds nobody is replaced by Python. So it is where nothing forks: jobs on a cluster,
jobs of several processes, systems other than Linux, a system that refuses any of this.

This file is run as a program and imports nothing but the standard library. The idea is that of the
fork server of ``multiprocessing`` and of Android's zygote.
"""

import contextlib
import importlib
import json
import logging
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path

PRELOADED = (
    "pflpipe.simulation.scores",
    "pflpipe.study.plans",
    "dp_accounting.pld.privacy_loss_distribution",
    "pflpipe.auditing.cases",
    "scipy.stats",
    "pflpipe.report.tables",
    "pflpipe.report.figures.kinds",
    "matplotlib.backends.backend_svg",
    "matplotlib.backends.backend_pdf",
    "fontTools.subset",
    "pflpipe.study.load",
    "pflpipe.study.documents:validator",
    "pflpipe.program",
)
"""What most scripts import, what is needed first in front; and what each would compute from the
package alone, as ``<module>:<function>``, which keeps its answer."""

REQUEST_BYTES = 2**20


def new_address() -> Path:
    """Return where a process can listen, in a folder that ``start`` makes."""
    return Path(tempfile.gettempdir()) / f"pflpipe-{uuid.uuid4().hex[:12]}" / "socket"


def start(address: Path, path: str, modules: Sequence[str] = PRELOADED) -> None:
    """Start the process, without waiting for it; where it cannot be started nothing happens.

    It ends with its parent. Scripts that are at work then go on.

    Args:
        address: of ``new_address``; ``forked.py`` finds it in ``PFLPIPE_FORKS``.
        path: the process's ``PYTHONPATH``.
        modules: what it imports or calls (``PRELOADED``), the first before it forks at all.
    """
    if sys.platform != "linux":
        return
    reading, _ = os.pipe()  # the other end stays open as long as this process lives
    try:
        address.parent.mkdir(mode=0o700)  # so that nobody else can connect
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(address))
            listener.listen(1024)
            subprocess.Popen(
                [sys.executable, "-P", __file__, str(address), str(listener.fileno()), *modules],
                stdin=reading,
                pass_fds=[listener.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            )
    except OSError:  # such as a temporary folder whose name is too long for an address
        shutil.rmtree(address.parent, ignore_errors=True)
    finally:
        os.close(reading)


def serve(listener: socket.socket, modules: list[str]) -> None:
    """Fork for every caller, and import more while there is none, until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the scripts
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    _prepare(modules.pop(0))
    while True:
        ready = select.select([sys.stdin, listener], [], [], 0 if modules else None)[0]
        if sys.stdin in ready:
            return
        if listener in ready:
            # What the system refuses, such as one more process, costs this caller its fork.
            with contextlib.suppress(OSError), listener.accept()[0] as caller:
                if not os.fork():
                    listener.close()
                    _run(caller)
        else:
            _prepare(modules.pop(0))


def _prepare(name: str) -> None:
    module, _, function = name.partition(":")
    imported = importlib.import_module(module)
    if function:
        getattr(imported, function)()


def _run(caller: socket.socket) -> None:
    """Be the script that a caller asks for, and tell it the exit code."""
    code: object = 1
    try:
        request, files, _, _ = socket.recv_fds(caller, REQUEST_BYTES, 2)
        words, folder, environment = json.loads(request)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, start=1):
            os.dup2(file, number)
            os.close(file)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = words
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [str(Path(words[0]).parent), *filter(None, paths)]
        caller.send(b"begun")
        threading.Thread(target=_end_with, args=[caller], daemon=True).start()
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the caller was ended before the script began
        pass
    except BaseException:
        traceback.print_exc()
    # Modules that were imported are not taken down one by one, which takes as long as a small job.
    with contextlib.suppress(OSError, ValueError):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    code = code if isinstance(code, int) else int(code is not None)
    # Whoever hears the code may unmount a disk at once, so nothing is open by then. The memory of
    # a large script takes a while to free, and the system closes files only after it.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor != caller.fileno():
            with contextlib.suppress(OSError):  # such as the one that listed them
                os.close(descriptor)
    with contextlib.suppress(OSError):
        caller.send(str(code & 255).encode())
    os._exit(code & 255)


def _end_with(caller: socket.socket) -> None:
    """End this script when its caller ends; it sends nothing more."""
    with contextlib.suppress(OSError):
        caller.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    address = Path(sys.argv[1])
    try:
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    finally:
        shutil.rmtree(address.parent, ignore_errors=True)
