"""Offline scoring: the same rows and one hash, whatever the shards, interruptions and the order of batches."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import dropscope as ds
from dropscope.deploy.scoring import Scorer, score
from support.errors import refused
from support.terminal import commands_in

N, F = 500, 6


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(F, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


@pytest.fixture(scope="module", params=[None, "last=0.2", "0=0.3"], ids=["plain", "analytic", "passes"])
def predictor(net, request):
    draw = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(300, F, generator=draw)
    with torch.no_grad():
        y = torch.multinomial((3 * net(x)).softmax(1), 1, generator=draw)[:, 0]
    engine = "analytic" if request.param == "last=0.2" else "auto"
    return ds.UncertaintyPredictor.fit(net, (x, y), request.param, 5, max_error=0.4, engine=engine)


@pytest.fixture
def rows(tmp_path):
    """Three files of several row groups, with ids, features one by one, and something else."""
    folder, rng = tmp_path / "rows", np.random.default_rng(0)
    folder.mkdir()
    for number, some in enumerate(np.array_split(rng.standard_normal((N, F), dtype=np.float32), 3)):
        columns = {f"f{i}": some[:, i] for i in range(F)} | {"id": [f"{number}:{i}" for i in range(len(some))]}
        pq.write_table(pa.table(columns | {"n": np.arange(len(some))}), folder / f"{number}.parquet", row_group_size=60)
    return folder


def read(folder):
    return pq.read_table(folder / "parts").to_pandas()


def test_scores_are_what_the_predictor_says(predictor, rows, tmp_path):
    found = score(predictor, rows / "*.parquet", tmp_path / "s", id_column="id", progress=False)
    assert (found.rows, found.parts, found.units) == (N, 9, 9)
    table = read(tmp_path / "s").set_index("id")
    given = pq.read_table(rows).to_pandas().set_index("id")
    said = predictor(torch.tensor(given[[f"f{i}" for i in range(F)]].to_numpy()))
    table = table.loc[given.index]
    assert (table.prediction == said.labels).all()
    assert (table.defer == said.defer).all()
    np.testing.assert_allclose(table.uncertainty, said.uncertainty, atol=1e-6)
    assert found.deferred == pytest.approx(said.defer.mean())
    assert found.hash in str(found)


def test_shards_and_whole_runs_have_one_hash(predictor, rows, tmp_path):
    whole = score(predictor, rows, tmp_path / "whole", progress=False)
    for of in (2, 8):
        for number in range(1, of + 1):
            part = score(predictor, rows, tmp_path / f"of{of}", shard=f"{number}/{of}", progress=False)
            assert (part.hash is None) == (number < of)
        assert part.hash == whole.hash
    assert score(predictor, rows, tmp_path / "whole", progress=False).computed == 0
    assert score(predictor, rows, f"memory://{tmp_path.name}", progress=False).hash == whole.hash


def test_what_is_missing_or_damaged_is_computed_again(predictor, rows, tmp_path):
    first = score(predictor, rows, tmp_path / "s", id_column="id", progress=False)
    parts = sorted((tmp_path / "s" / "parts").iterdir())
    parts[0].unlink()
    parts[1].write_bytes(parts[1].read_bytes()[:-9])
    table = pq.read_table(parts[2])
    changed = table.set_column(1, "prediction", pa.array(np.zeros(len(table), np.int32)))
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), parts[2])
    again = score(predictor, rows, tmp_path / "s", id_column="id", progress=False)
    assert again.computed in (2, 3)  # where all predictions are 0 nothing was changed
    assert again.hash == first.hash


def test_a_hash_sees_every_row_and_no_order():
    from dropscope.deploy.tallies import Tally, content_keys

    keys = content_keys(np.arange(10.0))
    scores = {"uncertainty": np.linspace(0, 1, 10, dtype=np.float32), "defer": np.arange(10) > 4}
    turned = {name: one[::-1] for name, one in scores.items()}
    whole = Tally.of_rows(keys, scores)
    assert Tally.of_rows(keys[::-1], turned) == whole
    assert Tally.of_rows(keys, turned).hash != whole.hash
    assert Tally.of_rows(keys[:9], {name: one[:9] for name, one in scores.items()}).hash != whole.hash


def test_a_scorer_travels_to_other_processes(predictor):
    scorer = Scorer(predictor, columns=["x"])
    batch = {"x": np.random.default_rng(0).standard_normal((7, F)).astype(np.float32)}
    first = scorer(batch)
    again = pickle.loads(pickle.dumps(scorer))(batch)
    assert all((first[name] == again[name]).all() for name in first)


@pytest.mark.parametrize(("name", "given"), [
    ("data", {"data": "nowhere/*.parquet"}),
    ("columns", {"columns": ["f0", "f9"]}),
    ("columns", {"columns": ["id"]}),
    ("id_column", {"id_column": "name"}),
    ("shard", {"shard": "3/2"}),
    ("batch_size", {"batch_size": 0}),
    ("data", {"data": __file__}),
])  # fmt: skip
def test_what_cannot_be_scored_is_refused(predictor, rows, name, given, tmp_path):
    with refused(name):
        score(predictor, **{"data": rows, "out": tmp_path / "s", "progress": False, **given})
    assert not (tmp_path / "s" / "parts").exists()


def test_a_folder_holds_one_run(predictor, rows, tmp_path):
    score(predictor, rows, tmp_path / "s", progress=False)
    with refused("out"):
        score(predictor, rows, tmp_path / "s", id_column="id", progress=False)


def test_the_command(net, rows, tmp_path, monkeypatch):
    run = commands_in(tmp_path, monkeypatch, NET)
    run("calibrate", "net.py:model", "--data", "net.py:data", "--max-error", "0.5", "--out", "p")
    given = ("score", "net.py:model", "--predictor", "p", "--data", "rows/*.parquet", "--out", "scored")
    assert "rows" in run(*given, "--dry-run").stdout
    assert "1 of 2" not in run(*given, "--shard", "1/2").stdout
    result = run(*given)
    assert "9 of 9" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "--predictor" in run(*given[:3], "nothing", *given[4:], code=2).stderr
    assert "--columns" in run(*given, "--columns", "f9", code=2).stderr


NET = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()

def data():
    x = 2 * torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return x, torch.multinomial((3 * model()(x)).softmax(1), 1, generator=torch.Generator().manual_seed(2))[:, 0]
"""
