"""The last layer without passes: near many passes, refused where noise does more, left to passes where it is poor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dropscope as ds
from dropscope.engine.analytic import AnalyticEngine, Tolerance
from dropscope.engine.choice import choose_engine
from dropscope.engine.session import Session, open_session
from support import zoo
from support.errors import refused

MEASURES = ["predictive_entropy", "expected_entropy", "bald", "variation_max", "averaged_variance", "variation_ratio"]


class Classifier(nn.Module):
    """Two layers with an activation between them, and `after` the last one."""

    def __init__(
        self, width: int, classes: int, activation: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]
    ):
        super().__init__()
        self.hidden, self.drop, self.head = nn.Linear(8, width), nn.Dropout(0.3), nn.Linear(width, classes)
        self.activation, self.after = activation, after
        with torch.no_grad():
            self.head.weight.mul_(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(self.drop(self.activation(self.hidden(x)))))


def classifier(
    width: int = 64,
    classes: int = 4,
    activation: Callable[[Tensor], Tensor] = F.relu,
    after: Callable[[Tensor], Tensor] = lambda z: z,
) -> nn.Module:
    return zoo.seeded(lambda: Classifier(width, classes, activation, after))


def poor() -> nn.Module:
    """Few units of large effect."""
    model = classifier(width=24)
    with torch.no_grad():
        model.head.weight.mul_(8)
    return model


def session_of(model: nn.Module, inputs: Tensor | None = None, **options: object) -> Session:
    return open_session(model, zoo.vectors(40) if inputs is None else inputs, **options)


def built(model: nn.Module, placement: str, inputs: Tensor | None = None, **options: object) -> AnalyticEngine:
    session = session_of(model, inputs, **options)
    return AnalyticEngine.build(session, session.resolve([placement]), 100)


def mean_of(engine: AnalyticEngine) -> Tensor:
    return torch.cat([block.chunks[0][1].mean[0] for block in engine.statistics(0, {"sum_p"})])


def deviation(passes: Tensor) -> Tensor:
    return passes.std(0).amax(1)


class Pooled(nn.Module):
    """Feature maps that are pooled, or laid side by side, before the last layer."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.conv, self.pooled = nn.Conv2d(3, 12, 3, stride=4), pooled
        self.head = nn.Linear(12 if pooled else 12 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        maps = F.relu(self.conv(x))
        return self.head(maps.mean((2, 3)) if self.pooled else maps.flatten(1))


@pytest.mark.parametrize(
    ("model", "placement", "inputs", "outputs"),
    [
        (classifier(), "last=.5", None, "logits"),
        (classifier(), "hidden=.3", None, "logits"),
        (classifier(), "hidden@before_activation=.3", None, "logits"),
        (classifier(), "own", None, "logits"),
        (classifier(), "last=.3 noise=gaussian", None, "logits"),
        (classifier(width=200), "last=.2 noise=multinomial", None, "logits"),
        (classifier(activation=F.gelu), "hidden=.3", None, "logits"),
        (classifier(classes=1), "last=.5", None, "binary_logit"),
        (classifier(after=lambda z: z.softmax(1)), "last=.3", None, "probabilities"),
        (zoo.seeded(lambda: Pooled(True)), "conv=.3", zoo.images(24), "logits"),
        (zoo.seeded(lambda: Pooled(False)), "conv=.3", zoo.images(24), "logits"),
        (zoo.seeded(lambda: Pooled(False)), "last=.3", zoo.images(24), "logits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_means_are_near_those_of_many_passes(
    model: nn.Module, placement: str, inputs: Tensor | None, outputs: str
) -> None:
    engine = built(model, placement, inputs, outputs=outputs)
    data = zoo.vectors(40) if inputs is None else inputs
    passes = ds.sample(model, placement, data, 1000, draws="stratified", outputs=outputs, progress=False)
    assert float((mean_of(engine) - passes.mean(0)).square().mean().sqrt()) < 0.006
    assert engine.error(Tolerance(0.006)) < 0.006


def test_measures_are_near_those_of_many_passes() -> None:
    data = zoo.vectors(40)
    common = {"measures": MEASURES, "progress": False, "errors": False}
    fast = ds.uncertainty(classifier(), "last=.5", data, engine="analytic", **common)
    slow = ds.uncertainty(classifier(), "last=.5", data, 2000, draws="stratified", **common)
    assert list(fast.columns) == list(slow.columns)
    assert (fast.attrs["engine"], slow.attrs["engine"] in ("shared", "loop")) == ("analytic", True)
    for name in MEASURES:
        assert ((fast[name] - slow[name]) ** 2).mean() ** 0.5 < (0.05 if name == "variation_ratio" else 0.02), name


def test_there_is_no_monte_carlo_error_and_no_seed() -> None:
    tables = [
        ds.uncertainty(classifier(), "last=.5", zoo.vectors(9), engine="analytic", progress=False, seed=seed)
        for seed in (0, 1)
    ]
    assert not [name for name in tables[0] if name.endswith("_error")]
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    ("model", "placement", "inputs"),
    [
        (zoo.cifar(), "conv3=.3", zoo.images()),
        (zoo.cifar(), "fc1=.3,last=.2", zoo.images()),
        (zoo.cifar(), "conv1=.3", zoo.images()),
        (classifier(), "hidden@before_activation=.1 noise=gaussian", zoo.vectors()),
        (classifier(activation=F.gelu), "hidden@before_activation=.3", zoo.vectors()),
        (classifier(after=lambda z: 2 * z), "last=.3", zoo.vectors()),
        (zoo.seeded(lambda: Pooled(True)), "conv=.3 mask=element", zoo.images()),
        (classifier(classes=200), "last=.3", zoo.vectors()),
        (classifier(after=F.softplus), "last=.3", zoo.vectors()),
    ],
    ids=["conv3", "two places", "conv1", "negative factors", "gelu", "scaled", "pixels", "many classes", "softplus"],
)
def test_noise_that_does_more_than_scale_the_last_input_is_refused(
    model: nn.Module, placement: str, inputs: Tensor
) -> None:
    with refused("engine"):
        ds.uncertainty(model, placement, inputs, engine="analytic", progress=False)


def test_dense_outputs_are_refused() -> None:
    with refused("engine"):
        ds.maps(zoo.unet3d(), "last=.3", zoo.volumes(), engine="analytic", progress=False)


def test_where_the_error_is_large_passes_are_run_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model, data = poor(), zoo.vectors(40)
    with caplog.at_level(logging.WARNING, "dropscope"):
        table = ds.uncertainty(model, "last=.9", data, engine="analytic", progress=False)
    assert table.attrs["engine"] != "analytic"
    assert "passes are run" in caplog.text
    assert table.equals(ds.uncertainty(model, "last=.9", data, progress=False))


def test_auto_needs_a_tolerance_and_an_error_below_it() -> None:
    session = session_of(classifier())
    resolved = session.resolve(["last=.5"])
    error = AnalyticEngine.build(session, resolved, 100).error(Tolerance(0.0))
    assert choose_engine(session, resolved, 100).name != "analytic"
    assert choose_engine(session, resolved, 100, tolerance=Tolerance(2 * error)).name == "analytic"
    assert choose_engine(session, resolved, 100, tolerance=Tolerance(error / 2)).name != "analytic"
    assert (
        choose_engine(session, session.resolve(["hidden=.5,last=.2"]), 100, tolerance=Tolerance(1.0)).name != "analytic"
    )


def test_passes_themselves_are_refused() -> None:
    with refused("engine"):
        ds.sample(classifier(), "last=.5", zoo.vectors(), engine="analytic")
    with refused("engine"):
        ds.uncertainty(classifier(), "last=.5", zoo.vectors(), engine="analytic", measures=[deviation])
    engine = built(classifier(), "last=.5")
    with refused("engine"):
        engine.samples(0, engine.session.data.batches[0], range(2))


def test_a_sweep_needs_no_passes_either(tmp_path: Path) -> None:
    data = zoo.vectors(60), torch.arange(60) % 4
    common = {"engine": "analytic", "progress": False, "measures": ["bald"], "scores": ["aurc"]}
    run = ds.sweep(classifier(), ["last=.1", "last=.3", "none"], data, out=tmp_path / "run", **common)
    assert (run.engine, len(run.rows)) == ("analytic", 3)
    assert run.rows.cost.min() == 1
    again = ds.sweep(classifier(), ["last=.1", "last=.3", "none"], data, out=tmp_path / "run", **common)
    assert again.rows.equals(run.rows)
    with refused("engine"):
        ds.sweep(poor(), ["last=.9"], data, out=tmp_path / "poor", **common)
