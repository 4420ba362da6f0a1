"""Called instead of Python: has a script run in a fork (forks.py) and ends as the script does.

Standard library alone, since it is started for every job: ``python -IS forked.py <script>
<words>``, with the address of the process that forks in ``PFLPIPE_FORKS``. Python itself runs what
is no script, what wants threads of its own, and every script when no process answers.
"""

import contextlib
import json
import os
import signal
import socket
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback in the log
ADDRESS, WORDS = os.environ.get("PFLPIPE_FORKS", ""), sys.argv[1:]


def _by_fork() -> int | None:
    """Return the exit code of the script, negative if it was killed; None if it did not begin."""
    begun = False
    with (
        contextlib.suppress(OSError),  # nobody there, or more words than one message holds
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
    ):
        server.connect(ADDRESS)
        request = json.dumps([WORDS, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(server, [request], [1, 2])
        if begun := bool(server.recv(16)):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the script as well
            return int(server.recv(16) or -signal.SIGKILL)
    return -signal.SIGKILL if begun else None


is_script = bool(WORDS) and WORDS[0].endswith(".py")
code = _by_fork() if is_script and os.environ.get("OMP_NUM_THREADS", "1") == "1" else None
if code is None:
    os.execv(sys.executable, [sys.executable, *WORDS])
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
