"""What a lab runs beside pflpipe, on ports of this machine and for the tests alone: PostgreSQL, and
an object store that speaks S3 (moto), which counts its requests and can be told to refuse them, to
be slow, or not to answer."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from called import works
from mlflow_server import free_port, wait

_PROGRAMS = os.pathsep.join(
    [os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
)
"""Debian keeps the programs of a PostgreSQL server out of PATH."""
_PACKAGES = {"boto3": "boto3", "moto": "moto[s3]", "psycopg2": "psycopg2-binary"}
_PACKAGES |= {"snakemake_storage_plugin_s3": "snakemake-storage-plugin-s3"}


def missing(*, database: bool = False) -> str:
    """Return why the store, and the database if it is needed, cannot be started; else nothing."""
    packages = [name for of, name in _PACKAGES.items() if not importlib.util.find_spec(of)]
    needed = ("initdb", "postgres", "setpriv") if database else ()
    if programs := [name for name in needed if not shutil.which(name, path=_PROGRAMS)]:
        return f"not there: {', '.join(programs)} (apt-get install postgresql)"
    if database and not works(*_as_owner(), "true"):
        return "no user postgres, whom Debian's package makes, or root may not run programs as it"
    return f"not there: {', '.join(packages)} (pip install)" if packages else ""


def _as_owner() -> list[str]:
    """Return the beginning of a command that runs a program as the owner of the database."""
    owner = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    return ["setpriv", "--pdeathsig", "QUIT", *owner]


class PostgreSQL:
    """A database server with an empty database, to start, kill and start again.

    It refuses to run as root, so root starts it as the user whom Debian's package makes. Its folder
    is its own, because that user may not look into the folders of pytest.
    """

    def __init__(self) -> None:
        self.folder, self.port = Path(tempfile.mkdtemp(prefix="pflpipe-postgresql-")), free_port()
        self.uri = f"postgresql://mlflow@127.0.0.1:{self.port}/postgres"
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        words = ["--username=mlflow", "--auth=trust", "--no-sync", "--encoding=UTF8"]
        self._run("initdb", *words).communicate()

    def start(self) -> PostgreSQL:
        """Start, and wait until it answers."""
        import psycopg2

        def answers() -> bool:
            with contextlib.suppress(psycopg2.OperationalError):
                psycopg2.connect(self.uri).close()
                return True
            return False

        places = ["-k", str(self.folder), "-c", "listen_addresses=127.0.0.1"]
        self.process = self._run("postgres", "-p", str(self.port), *places)
        wait(answers, self.process, self.folder / "log")
        return self

    def kill(self) -> None:
        """End it at once, with all its connections and without a last checkpoint."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(timeout=60)

    def remove(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder)

    def _run(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        program = shutil.which(name, path=_PROGRAMS)
        assert program, name
        with open(self.folder / "log", "ab") as log:
            command = [*_as_owner(), program, "-D", self.folder / "data", *words]
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)


class ObjectStore:
    """Buckets in memory, behind the interface of S3.

    Attributes:
        requests: how many of each method were answered.
        disturb: called before each request; what it returns, a status such as ``503 Slow Down``,
            is the answer, nothing lets the request through.
        delay: seconds before each answer.
        hanging: methods such as ``PUT``. The next request of each is not answered, for as long as
            it takes its client to lose patience and to ask again.
        environment: the variables by which boto3, MLflow and Snakemake find the store.
    """

    def __init__(self, *buckets: str) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            def log(self, type: str, message: str, *words: Any) -> None:
                pass

        self.requests: Counter[str] = Counter()
        self.disturb: Callable[[], str] = lambda: ""
        self.delay, self.hanging = 0.0, set[str]()
        self._hung: dict[str, threading.Event] = {}
        self._counting = threading.Lock()
        self._app = DomainDispatcherApplication(create_backend_app)
        how = {"threaded": True, "request_handler": Quiet}
        self._server = make_server("127.0.0.1", free_port(), self._answer, **how)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.uri = f"http://127.0.0.1:{self._server.port}"
        self._secret = {"aws_access_key_id": "me", "aws_secret_access_key": "secret"}
        self.environment = {name.upper(): value for name, value in self._secret.items()}
        self.environment |= {"AWS_ENDPOINT_URL": self.uri, "AWS_DEFAULT_REGION": "us-east-1"}
        for bucket in buckets:
            self.client().create_bucket(Bucket=bucket)

    def client(self) -> Any:
        """Return a client of boto3."""
        import boto3

        where = {"endpoint_url": self.uri, "region_name": "us-east-1"}
        return boto3.client("s3", **where, **self._secret)

    def keys(self, bucket: str) -> set[str]:
        """Return the names of all objects of a bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {item["Key"] for page in pages for item in page.get("Contents", ())}

    def stop(self) -> None:
        """End it and forget its objects, which moto keeps for all servers of this process."""
        urllib.request.urlopen(f"{self.uri}/moto-api/reset", data=b"").close()
        self._server.shutdown()

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        time.sleep(self.delay)
        if status := self.disturb() or self._hang(environ):
            # What was sent has to be read, or the client sees a broken connection.
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(status, [("Content-Length", "0")])
            return []
        with self._counting:
            self.requests[environ["REQUEST_METHOD"]] += 1
        answer: Iterable[bytes] = self._app(environ, start)
        return answer

    def _hang(self, environ: dict[str, Any]) -> str:
        """Return nothing, or much later a status that nobody waits for any more.

        The clients of Amazon send a number with each request, which stays when they repeat it.
        """
        method, number = environ["REQUEST_METHOD"], environ.get("HTTP_AMZ_SDK_INVOCATION_ID", "")
        with self._counting:
            first = self._hung.pop(number, None)
            if first is not None:
                first.set()
            if method not in self.hanging:
                return ""
            self.hanging.remove(method)
            asked_again = self._hung[number] = threading.Event()
        asked_again.wait()
        return "503 Slow Down"
