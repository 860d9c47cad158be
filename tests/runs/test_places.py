"""Places of runs: one contract for folders, object stores and other file systems."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

import dropscope as ds
from dropscope.atomic import atomic_write, output_folder, remove_torn
from dropscope.runs.places import AddressedPlace, FolderPlace, Place, existing_place, open_place
from runs.test_shards import asked, same
from support import object_store
from support.errors import refused


@pytest.fixture(params=["folder", "objects", "files"])
def place(request: Any, tmp_path: Path) -> Place:
    if request.param == "folder":
        return open_place(tmp_path / "run")
    if request.param == "objects":
        return open_place(f"memory://{uuid.uuid4().hex}/run")
    return AddressedPlace("sftp://host/run", LocalFileSystem(), str(tmp_path / "run"))


def test_files_are_whole_or_absent(place: Place) -> None:
    assert not place.exists("run.json")
    assert place.names("rows") == []
    with pytest.raises(FileNotFoundError):
        place.read("rows/a")
    place.write("rows/b", b"2")
    place.write("rows/a", b"1")
    place.write("rows/a", b"3")
    assert place.names("rows") == ["a", "b"]
    assert place.read("rows/a") == b"3"


def test_the_first_writer_wins(place: Place) -> None:
    assert place.create("run.json", b"first")
    assert not place.create("run.json", b"second")
    assert place.read("run.json") == b"first"
    place.clean()
    assert place.exists("run.json")


def test_a_sweep_at_an_address() -> None:
    address = f"memory://{uuid.uuid4().hex}/run"
    whole = ds.sweep(**asked())
    first = ds.sweep_shard(**asked(), shard="1/2", out=address)
    assert first.run is None
    run = ds.sweep(**asked(), out=address)
    same(run, whole)
    assert run.folder == address
    same(ds.open_run(address), whole)


@pytest.mark.parametrize("address", ["zz9://bucket/run", "zz9::s3://bucket"])
def test_addresses_that_nobody_knows(address: str) -> None:
    with refused("out"):
        open_place(address)


def test_a_file_address_is_a_folder(tmp_path: Path) -> None:
    assert open_place(f"file://{tmp_path}").at == tmp_path
    assert isinstance(existing_place(str(tmp_path)), FolderPlace)
    with refused("out"):
        output_folder("s3://bucket/run")  # of a study, which writes into folders alone


def test_what_a_living_process_writes_is_not_taken_for_torn(tmp_path: Path) -> None:
    """Another process cleans the folder again and again while this one writes."""
    stopped = threading.Event()
    code = f"from dropscope.atomic import remove_torn; from pathlib import Path; remove_torn(Path({str(tmp_path)!r}))"

    def write(part: Path) -> None:
        part.write_text("half")
        subprocess.run([sys.executable, "-c", code], check=True)
        part.write_text("whole")

    def clean() -> None:
        while not stopped.is_set():
            remove_torn(tmp_path)

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        for number in range(300):
            atomic_write(tmp_path / f"{number}", lambda part: part.write_text("x"))
        assert atomic_write(tmp_path / "slow", write).read_text() == "whole"
    finally:
        stopped.set()
        cleaner.join()
    (tmp_path / ".part-torn").write_text("half")
    remove_torn(tmp_path)
    assert len(list(tmp_path.iterdir())) == 301


# --- S3 ---------------------------------------------------------------------------------------------------------------

ON_S3 = textwrap.dedent("""
    import sys
    from multiprocessing.pool import ThreadPool
    import dropscope as ds
    from dropscope.runs.places import open_place
    from dropscope.runs.store import Store
    from runs.test_shards import asked, same

    place = open_place("s3://runs/race")
    won = ThreadPool(8).map(lambda n: place.create("run.json", b"%d" % n), range(8))
    assert won.count(True) == 1 and place.read("run.json") == b"%d" % won.index(True), won
    whole, address = ds.sweep(**asked()), "s3://runs/run"
    first, last = (ds.sweep_shard(**asked(), shard=f"{k}/2", out=address) for k in (1, 2))
    assert first.run is None and (last.there, last.parts) == (8, 8)
    same(last.run, whole)
    store = Store(open_place(address))
    name = store.place.names("rows")[0]
    store.place.write(f"rows/{name}", store.place.read(f"rows/{name}")[:-9])
    assert len(store.parts()) == 7
    same(ds.sweep(**asked(), out=address), whole)
    same(ds.open_run(address), whole)
    try:
        ds.sweep(**asked(), out="s3://nobucket/run")
    except ds.BadInput as error:
        assert error.name == "out"
    print("done")
""")


@pytest.mark.slow
@pytest.mark.skipif(not object_store.installed(), reason="the local S3 server is not installed (make test does)")
def test_a_run_on_s3() -> None:
    with object_store.s3_server("runs") as environment:
        environment = {**environment, "DROPSCOPE_CAPTURE": os.environ["DROPSCOPE_CAPTURE"]}
        said = subprocess.run([sys.executable, "-c", ON_S3], env=environment, capture_output=True, text=True)
    assert said.stdout == "done\n", said.stderr
