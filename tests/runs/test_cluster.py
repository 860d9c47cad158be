"""A Ray cluster of two nodes on this machine: the rows of one process, whatever is killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.errors import Unfinished
from dropscope.runs import workers
from dropscope.runs.cluster import Crew, Failure, Needs
from dropscope.runs.store import Store
from runs.test_shards import asked, same
from support import zoo
from support.errors import refused

ray = pytest.importorskip("ray", reason="the extra cluster is not installed")

# Ray leaves files and sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "200")  # a machine that is busy
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def whole() -> ds.Run:
    return ds.sweep(**asked())


class Own(nn.Module):
    """A class that no worker can import."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("engine", ["shared", "loop"])
def test_code_of_the_users_own_is_sent_along(engine: str) -> None:
    def tempered(output: torch.Tensor) -> torch.Tensor:
        return (output / 2).softmax(-1)

    own = asked(model=zoo.seeded(Own), placements=["fc1=0.2", "fc2=0.5", "fc3=0.3"], outputs=tempered, engine=engine)
    same(ds.sweep(**own, workers=2), ds.sweep(**own))


@pytest.mark.slow
def test_a_node_is_lost(nodes: Any, tmp_path: Path, whole: ds.Run, caplog: Any, monkeypatch: Any) -> None:
    """No part runs more often than once, but for the one that was in flight there."""
    written: list[str] = []
    write = Store.write_rows

    def killing(self: Store, name: str, rows: Any) -> None:
        write(self, name, rows)
        written.append(name)
        if len(written) == 2:
            nodes.remove_node(nodes.list_all_nodes()[1], allow_graceful=False)

    monkeypatch.setattr(Store, "write_rows", killing)
    with caplog.at_level(logging.DEBUG, "dropscope"):
        run = ds.sweep(**asked(), cluster="auto", out=tmp_path)
    nodes.add_node(num_cpus=1)
    same(run, whole)
    assert Counter(written) == Counter(set(written))
    assert sum(started(caplog).values()) <= 8 + 2


def started(caplog: Any) -> Counter[str]:
    return Counter(str(record.args[0]) for record in caplog.records if "is started" in record.msg)


DRIVER = textwrap.dedent("""
    import sys, torch
    torch.set_num_threads(1)
    from runs.test_shards import asked
    import dropscope as ds
    ds.sweep(**asked(), cluster=sys.argv[1], out=sys.argv[2])
""")


@pytest.mark.slow
def test_the_driver_is_killed(nodes: Any, tmp_path: Path, whole: ds.Run, caplog: Any) -> None:
    """What it left is taken up by a process that works alone."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, nodes.address, str(tmp_path)], env=environment)
    while not len(list(tmp_path.glob("rows/part-*"))) and driver.poll() is None:
        time.sleep(0.001)
    os.kill(driver.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    left = 8 - len(list(tmp_path.glob("rows/part-*")))
    assert left
    with caplog.at_level(logging.DEBUG, "dropscope"):
        same(ds.sweep(**asked(), cluster="auto", out=tmp_path), whole)
    assert sum(started(caplog).values()) == left


def fails_at_one(order: Any, item: Any, tick: Any) -> Any:
    if item.number == 3:
        raise ArithmeticError("no such luck")
    return workers.compute(order, item, tick)


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
def test_a_part_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path, whole: ds.Run, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workers, "compute", fails_at_one)
        with pytest.raises(Unfinished) as caught:
            ds.sweep(**asked(), workers=2, out=tmp_path)
    assert (caught.value.failed, caught.value.parts, caught.value.lacking) == (1, 8, 2)
    assert "no such luck" in str(caught.value)
    (failure,) = Store(tmp_path).failures().values()
    assert failure["attempts"] == 3
    assert len(failure["lacks"]) == 2
    with refused("folder"):
        ds.open_run(tmp_path)
    same(ds.sweep(**asked(), out=tmp_path), whole)
    assert not Store(tmp_path).failures()


def odd(common: Path, item: int, tick: Any) -> int:
    tick(10)
    if item == 3:
        raise ds.BadInput("items must be odd enough", "item", item, "write item=5")
    if item == 4 and not (common / "lost").exists():
        (common / "lost").touch()
        os._exit(1)
    return item * item


@pytest.mark.slow
@pytest.mark.usefixtures("nodes")
def test_tasks_that_fail_or_are_lost(tmp_path: Path) -> None:
    counted: list[int] = []
    with Crew(None, 2).connected() as cluster:
        found = dict(cluster.run(odd, tmp_path, [0, 1, 2, 3, 4], Needs(), counted.append))
        with refused("cluster"):
            list(cluster.run(odd, tmp_path, [0], Needs(cpus=1000)))
    failure = found.pop(3)
    assert found == {0: 0, 1: 1, 2: 4, 4: 16}
    assert isinstance(failure, Failure)
    assert failure.attempts == 1  # it would be refused again
    assert 0 < sum(counted) <= 60


@pytest.mark.parametrize(("cluster", "count", "named"), [("nonsense", None, "cluster"), (None, 0, "workers")])
def test_crews_that_cannot_be_asked_for(cluster: str | None, count: int | None, named: str) -> None:
    with refused(named):
        Crew.asked(cluster, count)
    assert Crew.asked(None, None) is None


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refused("ray"):
        Crew.asked("auto", None)
