"""What every run starts from: data read, arguments checked before any pass, the model left as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from dropscope.checks import check_passes
from dropscope.engine.session import open_session, sealed
from support import zoo
from support.errors import refused


class Answers(nn.Module):
    """A small model whose output is made by `answer` from its logits."""

    def __init__(self, answer: Any = lambda logits: logits) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 3)
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.fc2(torch.relu(self.fc1(x))))


def net(answer: Any = lambda logits: logits) -> nn.Module:
    return zoo.seeded(lambda: Answers(answer))


LABELS = torch.tensor([0, 1, 2, 0])


# --- a closed form ----------------------------------------------------------------------------------------------------


def test_a_session_knows_its_model_and_data() -> None:
    model = net()
    session = open_session(model, (zoo.vectors(), LABELS), seed=3, batch_size=3)
    assert (session.classes, session.dense, session.seed, session.masks) == (3, False, 3, "per_example")
    assert [batch.n for batch in session.data.batches] == [3, 1]
    with torch.no_grad():
        expected = model(zoo.vectors()[:3]).softmax(1)
        torch.testing.assert_close(session.plain(session.data.batches[0]), expected)


def test_dense_outputs_are_known_by_their_shape() -> None:
    assert open_session(zoo.unet3d(), zoo.volumes()).dense
    assert open_session(net(), zoo.vectors(), outputs="multilabel_logits").dense


# --- bad input: one clear error before any work, nothing changed ------------------------------------------------------

# What is asked, the argument that the error names, and what its message shows: the value, or what to write instead.
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown site": ({"placement": "fc9=.5"}, "placement", "did you mean 'fc"),
    "rate 1": ({"placement": "fc1=1.0"}, "rate of 'fc1'", "1.0"),
    "negative rate": ({"placement": "fc1=-0.1"}, "rate of 'fc1'", "-0.1"),
    "rate nan": ({"placement": {"fc1": float("nan")}}, "rate of 'fc1'", "nan"),
    "empty placement": ({"placement": ""}, "placement", "'none'"),
    "no such position": ({"placement": "fc2@after_activation=.5"}, "position", "fc2@output"),
    "empty data": ({"inputs": torch.zeros(0, 8), "labels": torch.zeros(0).long()}, "inputs", "(0, 8)"),
    "labels out of range": ({"labels": torch.tensor([0, 1, 2, 3])}, "labels", "3 (1 such of 4)"),
    "too few labels": ({"labels": torch.tensor([0, 1])}, "labels", "2 for 4"),
    "no passes": ({"passes": 0}, "passes", "0"),
    "passes as text": ({"passes": "10"}, "passes", "'10'"),
    "true is no number of passes": ({"passes": True}, "passes", "True"),
    "seed": ({"seed": 1.5}, "seed", "1.5"),
    "masks": ({"masks": "per_batch"}, "masks", "'per_pass'"),
    "draws": ({"draws": "sobol"}, "draws", "stratified"),
    "engine": ({"engine": "fast"}, "engine", "loop"),
    "label": ({"label": "median"}, "label", "'mean'"),
    "measure": ({"measures": ["bold"]}, "measures", "did you mean 'bald'"),
    "device": ({"device": "gpu"}, "device", "'gpu'"),
    "precision": ({"precision": "fp16"}, "precision", "bf16"),
    "outputs": ({"outputs": "logit"}, "outputs", "did you mean 'logits'"),
    "batch size": ({"batch_size": 0}, "batch_size", "0"),
    "a dict without logits": ({"model": net(lambda logits: {"scores": logits})}, "outputs", "o['scores']"),
    "NaN outputs": ({"model": net(lambda logits: logits / 0 * 0)}, "model", "NaN or infinity"),
    "one row for all examples": ({"model": net(lambda logits: logits.mean(0, keepdim=True))}, "model", "(1, 3)"),
    "probabilities": ({"model": net(lambda logits: logits.softmax(1))}, "outputs", "outputs='probabilities'"),
}


def called(function: Any, given: dict[str, Any]) -> None:
    given = dict(given)
    model, placement = given.pop("model", None) or net(), given.pop("placement", "fc1=.5")
    data = given.pop("inputs", zoo.vectors()), given.pop("labels", LABELS)
    placements = [placement] if function is ds.sweep else placement
    function(model, placements, data, **{"passes": 3, **given})


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("function", [ds.uncertainty, ds.sweep], ids=["uncertainty", "sweep"])
def test_bad_input_is_one_clear_error_and_changes_nothing(
    function: Any, name: str, untouched: Any, tmp_path: Any
) -> None:
    given, argument, shown = BAD[name]
    model = given.get("model") or net()
    extra = {"out": tmp_path / "run"} if function is ds.sweep else {}
    with untouched(model), refused(argument) as caught:
        called(function, {**given, "model": model, **extra})
    assert shown.lower() in str(caught.value).lower()
    assert caught.value.remedy
    assert not (tmp_path / "run").exists()


SWEEP_ONLY: dict[str, tuple[dict[str, Any], str, str]] = {
    "keep": ({"keep": "best"}, "keep", "keep='top:50'"),
    "keep without number": ({"keep": "top:"}, "keep", "keep='top:50'"),
    "objective": ({"objective": "auroc"}, "objective", "'error_auroc'"),
    "score": ({"scores": ["aurk"]}, "scores", "'aurc'"),
    "a score of segmentations": ({"scores": ["dice"]}, "scores", "'dice'"),
    "memory": ({"memory": "lots"}, "memory", "memory='4GiB'"),
    "too little memory": ({"memory": 1000}, "memory", "1 MiB"),
    "unlabelled": ({"labels": None}, "data", "labels"),
    "dense": ({"outputs": "multilabel_logits", "labels": torch.zeros(4, 3).bool()}, "model", "maps"),
}


@pytest.mark.parametrize("name", SWEEP_ONLY)
def test_bad_arguments_of_a_sweep(name: str, untouched: Any) -> None:
    given, argument, shown = SWEEP_ONLY[name]
    model = net()
    with untouched(model), refused(argument) as caught:
        called(ds.sweep, {**given, "model": model})
    assert shown in str(caught.value)


def test_no_placements() -> None:
    with refused("placements"):
        ds.sweep(net(), [], (zoo.vectors(), LABELS))


def test_weights_on_two_devices() -> None:
    model = net()
    model.extra = nn.Parameter(torch.zeros(2, device="meta"))
    with refused("model"):
        ds.uncertainty(model, "fc1=.5", zoo.vectors())


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_ambient_autocast(kind: str) -> None:
    if kind == "cuda":
        pytest.importorskip("torch.cuda")
    was = torch.is_autocast_enabled(kind)
    torch.set_autocast_enabled(kind, True)
    try:
        with refused("precision"):
            ds.sample(net(), "fc1=.5", zoo.vectors(), passes=2)
    finally:
        torch.set_autocast_enabled(kind, was)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    with refused("device"):
        ds.sample(net(), "fc1=.5", zoo.vectors(), passes=2, device="cuda")


def test_labels_of_another_shape() -> None:
    with refused("labels"):
        ds.uncertainty(zoo.unet3d(), "last=.5", (zoo.volumes(), torch.tensor([0, 1, 0])), passes=2)


# --- contracts --------------------------------------------------------------------------------------------------------


def test_passes_are_whole_numbers_from_one() -> None:
    assert check_passes(1) == 1
    for wrong in (0, -1, 1.0, None, True, "3"):
        with refused("passes"):
            check_passes(wrong)


def settings() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.deterministic


def test_a_sealed_block_restores_what_it_found() -> None:
    kept = settings()
    with sealed():
        assert settings() == (False, False, False)
    with sealed(tf32=True, repeatable=True):
        assert settings() == (True, True, True)
    with pytest.raises(RuntimeError, match="inside"), sealed(tf32=True):
        raise RuntimeError("inside")
    assert settings() == kept


@pytest.mark.parametrize("engine", ["loop", "shared"])
def test_passes_run_in_tf32_where_it_is_asked_for(engine: str) -> None:
    seen: list[bool] = []

    def outputs(logits: Tensor) -> Tensor:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return logits.softmax(1)

    given: dict[str, Any] = {"passes": 2, "outputs": outputs, "engine": engine}
    run = ds.sweep(net(), ["fc1=.5"], (zoo.vectors(), LABELS), **given, precision="tf32")
    assert seen[-1]
    assert run.spec["precision"] == "tf32"
    seen.clear()
    single = ds.sweep(net(), ["fc1=.5"], (zoo.vectors(), LABELS), **given)
    assert not any(seen)
    pd.testing.assert_frame_equal(run.rows, single.rows)  # a CPU has no TF32


def test_the_bad_engine_is_found_without_noise_too() -> None:
    with refused("engine"):
        ds.sample(net(), "none", zoo.vectors(), passes=2, engine="fast")


@pytest.mark.parametrize(
    "inputs", [zoo.vectors().double(), zoo.vectors().long(), zoo.vectors()[:, :5], zoo.vectors().double().numpy()]
)
def test_inputs_that_the_model_does_not_take(inputs: Any) -> None:
    with refused("data") as caught:
        open_session(net(), (inputs, LABELS))
    assert f"(2, {inputs.shape[1]})" in str(caught.value)


def test_a_dataclass_holds_logits_as_well() -> None:
    @dataclasses.dataclass
    class Answer:
        logits: Tensor

    answers = net(Answer)
    x = zoo.vectors()
    assert ds.audit(answers, "fc1=0.5", x).ok
    assert torch.equal(ds.sample(answers, "fc1=0.5", x, passes=2), ds.sample(net(), "fc1=0.5", x, passes=2))


@pytest.mark.parametrize(
    ("labels", "binary", "regression"),
    [
        (None, True, True),
        (torch.tensor([0, 1, 1, 0]), True, False),
        (torch.tensor([0.0, 1.0, 1.0, 0.0]), True, False),
        (torch.tensor([3, 1, 4, 1]), False, True),
        (torch.tensor([3.0, 1.0, 4.0, 1.0]), False, True),
    ],
)
@pytest.mark.parametrize("shape", [(-1, 1), (-1,)])
def test_an_output_of_one_column_is_what_the_labels_say(
    labels: Tensor | None, binary: bool, regression: bool, shape: tuple[int, ...]
) -> None:
    """A regression that is run as a classifier of two classes gives numbers that mean nothing."""
    model = net(lambda logits: 2 + logits[:, 0].reshape(shape))
    with refused("outputs") as caught:
        open_session(model, zoo.vectors() if labels is None else (zoo.vectors(), labels))
    assert ("binary_logit" in caught.value.remedy) is binary
    assert ("regression is not supported yet" in caught.value.remedy) is regression
