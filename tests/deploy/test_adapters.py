"""Adapters: a predictor in MLflow, as a Hugging Face pipeline, and behind HTTP says what it says."""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from dropscope.deploy import TextPipeline, UncertaintyPredictor, mlflow_model
from dropscope.loading import load_model
from support.errors import refused
from support.tiny_checkpoints import checkpoint, sentence

SERVER = Path(__file__).parents[2] / "examples" / "server.py"


def load():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)).eval()


@pytest.fixture(scope="module")
def predictor():
    draw = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(400, 6, generator=draw)
    with torch.no_grad():
        y = torch.multinomial((3 * load()(x)).softmax(1), 1, generator=draw)[:, 0]
    return UncertaintyPredictor.fit(load(), (x, y), "own", 5, max_error=0.3)


FRAME = pd.DataFrame(np.random.default_rng(0).standard_normal((5, 6), dtype=np.float32), columns=list("abcdef"))


def same(found, predictor):
    said = predictor(torch.tensor(FRAME.to_numpy()))
    assert list(found["prediction"]) == said.labels.tolist()
    assert list(found["defer"]) == said.defer.tolist()
    np.testing.assert_allclose(list(found["uncertainty"]), said.uncertainty, atol=1e-6)


def test_a_python_model_of_mlflow(predictor, tmp_path, monkeypatch):
    """By the interface that MLflow documents: `load_context(context)`, then `predict(context, model_input, params)`."""
    pyfunc = types.ModuleType("mlflow.pyfunc")
    pyfunc.PythonModel = object
    monkeypatch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", pyfunc)
    made = mlflow_model(load)
    made.load_context(types.SimpleNamespace(artifacts={"predictor": str(predictor.save(tmp_path / "p"))}))
    same(made.predict(None, FRAME), predictor)


def test_mlflow_itself(predictor, tmp_path):
    mlflow = pytest.importorskip("mlflow.pyfunc", reason="needs mlflow")
    artifacts = {"predictor": str(predictor.save(tmp_path / "p"))}
    mlflow.save_model(tmp_path / "served", python_model=mlflow_model(load), artifacts=artifacts)
    same(mlflow.load_model(str(tmp_path / "served")).predict(FRAME), predictor)


def test_without_mlflow_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    with refused("mlflow"):
        mlflow_model(load)


def test_a_pipeline_of_texts(tmp_path):
    transformers = pytest.importorskip("transformers")
    name = str(checkpoint(tmp_path / "model", "bert"))
    texts = [sentence(number, 3 + number % 4) for number in range(60)]
    labels = [(i // 3) % 2 for i in range(60)]
    fitted = UncertaintyPredictor.fit(load_model(f"hf:{name}").module, (texts, labels), None, max_error=None,
                                      tokenizer=name)  # fmt: skip
    pipeline = transformers.pipeline("text-classification", name)
    classify = TextPipeline(pipeline, fitted.save(tmp_path / "p"))
    plain = pipeline(texts[:3])
    for found, expected in zip(classify(texts[:3]), plain, strict=True):
        assert found["label"] == expected["label"]
        assert found["score"] == pytest.approx(expected["score"], abs=1e-4)
        assert {"uncertainty", "error_probability", "defer"} <= {*found}
    assert classify(texts[0]) == classify(texts[:1])


def test_a_server(tmp_path, monkeypatch):
    pytest.importorskip("fastapi", reason="needs fastapi")
    testing = pytest.importorskip("fastapi.testclient", reason="needs httpx")
    monkeypatch.setenv("PREDICTOR", str(tmp_path / "p"))
    spec = importlib.util.spec_from_file_location("server", SERVER)
    server = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "server", server)
    spec.loader.exec_module(server)
    UncertaintyPredictor.fit(server.model(), server.labelled(), max_error=0.3).save(tmp_path / "p")
    client = testing.TestClient(server.app)
    rows = FRAME.to_numpy().tolist()
    said = server.predictor()(torch.tensor(rows))
    found = client.post("/predict", json={"rows": rows}).json()
    assert [one["prediction"] for one in found] == said.labels.tolist()
    assert [one["defer"] for one in found] == said.defer.tolist()
    assert client.post("/predict", json={"rows": [[1.0, 2.0]]}).status_code == 422
    assert client.post("/predict", json={"rows": [[1.0], [1.0, 2.0]]}).status_code == 422
