"""Called instead of Python: has a script run in a fork (forks.py) and ends as the script does.

Standard library alone, since it is started for every job: ``python -IS forked.py <python>
<address> <script> <words>``. What is no script, wants threads of its own, or finds nobody at the
address is run by Python itself.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys

PYTHON, ADDRESS, WORDS = sys.argv[1], sys.argv[2], sys.argv[3:]


def _by_python() -> None:
    os.execv(PYTHON, [PYTHON, *WORDS])


if not WORDS or not WORDS[0].endswith(".py") or os.environ.get("OMP_NUM_THREADS", "1") != "1":
    _by_python()
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
request = json.dumps([WORDS, os.getcwd(), dict(os.environ)]).encode()
try:
    server.connect(ADDRESS)
    socket.send_fds(server, [request], [1, 2])
    script = socket.recv_fds(server, 16, 1)[1]
except OSError:  # nobody there, or more words than one message holds
    script = []
if not script:  # or gone before it took this
    _by_python()
try:
    answer = server.recv(16)
except OSError:
    answer = b""
if not answer:  # killed, so that nobody will know how the script ends
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(script[0], signal.SIGTERM)
    select.select(script, [], [])
code = json.loads(answer) if answer else 1
if code < 0:  # a signal ended the script, and whoever called should see that
    if -code not in (signal.SIGKILL, signal.SIGSTOP):  # which nobody can handle
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
