"""A local S3 server for tests, in a process of its own: moto's, from the folder that DROPSCOPE_S3 names (make test).

The folder stands apart because moto and s3fs need an older python-dateutil than everything else here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(os.environ.get("DROPSCOPE_S3", Path(__file__).parents[2] / "build" / "s3"))


def installed() -> bool:
    return (FOLDER / "moto").is_dir() and (FOLDER / "s3fs").is_dir()


@contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """The environment of processes that are to use it; the bucket is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(FOLDER), *(entry for entry in sys.path if entry)])
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    address = f"http://127.0.0.1:{port}"
    environment = {**os.environ, **keys, "PYTHONPATH": path, "AWS_ENDPOINT_URL": address}
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    server = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT"), timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        yield environment
    finally:
        server.kill()
        server.wait()
