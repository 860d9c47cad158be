"""The study where-to-drop from data to summary: files and their errors, training, sweeps, resumption, own models."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from dropscope.cli import app
from dropscope.injection.sites import find_sites
from dropscope.loading import load_weights
from dropscope.studies.training import save_weights
from dropscope.studies.where_to_drop import study as study_module
from dropscope.studies.where_to_drop.batches import ShuffledBatches, shift_and_mirror
from dropscope.studies.where_to_drop.cifar import NETWORKS, cifar_task
from dropscope.studies.where_to_drop.cifar_files import CifarImages, read_cifar, scale_pixels
from dropscope.studies.where_to_drop.networks import CifarNet
from dropscope.studies.where_to_drop.options import Options
from dropscope.studies.where_to_drop.own_model import own_task
from dropscope.studies.where_to_drop.presets import PRESETS, Preset
from dropscope.studies.where_to_drop.report import smaller_than_paper
from dropscope.studies.where_to_drop.rows import load_results, load_study
from dropscope.studies.where_to_drop.study import Outcome, Plan, plan, run
from dropscope.studies.where_to_drop.tasks import Task, accuracy
from support.errors import refused

TINY = Preset((0.3, 0.7), (0.5,), 3, train=100, validation=40, test=40, epochs=1)
CPU = torch.device("cpu")
LIMITS = {"train": TINY.train, "validation": TINY.validation, "test": TINY.test, "epochs": TINY.epochs}


def run_tiny(task: Task, folder: Path, seeds: tuple[int, ...] = (0,), weights: Path | None = None) -> Outcome:
    files = () if weights is None else (weights,)
    return run(Plan(task, TINY, folder, seeds, files, CPU, progress=False))


def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose brightness tells the class, mostly."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 10, n)
    noise = draw.integers(-60, 60, (n, 3, 32, 32))
    return np.clip(labels[:, None, None, None] * 25 + noise, 0, 255).astype(np.uint8), labels.astype(np.uint8)


def binary(folder: Path, each: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        images, labels = drawn(each, number)
        np.concatenate([labels[:, None], images.reshape(each, -1)], 1).tofile(folder / name)
    return folder


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> CifarImages:
    return read_cifar(binary(tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin"))


@pytest.fixture(scope="module")
def done(cifar: CifarImages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole tiny study with two networks."""
    folder = tmp_path_factory.mktemp("study")
    run_tiny(cifar_task(cifar, **LIMITS), folder, (0, 1))
    return folder


# --- the data ---------------------------------------------------------------------------------------------------------


def test_the_binary_format_is_read_in_its_order(cifar: CifarImages) -> None:
    images, labels = drawn(60, 0)
    assert torch.equal(cifar.train_images[:60], torch.from_numpy(images))
    assert cifar.train_labels[:60].tolist() == labels.tolist()
    assert len(cifar.train_labels) == 300
    assert len(cifar.test_labels) == 60
    assert float(scale_pixels(cifar.test_images).abs().max()) <= 1


def test_parquet_gives_the_same_as_binary(cifar: CifarImages, tmp_path: Path) -> None:
    def png(image: Tensor) -> dict[str, bytes]:
        raw = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(raw, "PNG")
        return {"bytes": raw.getvalue()}

    for name, images, labels in (
        ("train-00000-of-00001", cifar.train_images[:20], cifar.train_labels[:20]),
        ("test-00000-of-00001", cifar.test_images[:5], cifar.test_labels[:5]),
    ):
        table = pd.DataFrame({"img": [png(image) for image in images], "label": labels.numpy()})
        (tmp_path / "plain_text").mkdir(exist_ok=True)
        table.to_parquet(tmp_path / "plain_text" / f"{name}.parquet")
    read = read_cifar(tmp_path)
    assert torch.equal(read.train_images, cifar.train_images[:20])
    assert torch.equal(read.test_labels, cifar.test_labels[:5])


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    folder = binary(tmp_path / "bin")
    whole = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").write_bytes(whole[:-100])
    with refused(str(folder / "data_batch_3.bin")) as caught:
        read_cifar(folder)
    assert str(len(whole) - 100) in str(caught.value)
    (folder / "data_batch_3.bin").write_bytes(whole[:-3073])  # cut between two records
    with refused(str(folder / "data_batch_3.bin")) as caught:
        read_cifar(folder)
    assert str(len(whole) - 3073) in str(caught.value)
    for path in folder.iterdir():
        path.write_bytes(whole[:-100])
    with refused(str(folder / "data_batch_1.bin")) as caught:
        read_cifar(folder)
    assert "3073" in str(caught.value)


def test_a_label_over_nine_is_named_with_its_record(tmp_path: Path) -> None:
    folder = binary(tmp_path / "bin")
    raw = np.fromfile(folder / "test_batch.bin", np.uint8)
    raw[3073 * 4] = 10
    raw.tofile(folder / "test_batch.bin")
    with refused(f"record 5 of {folder / 'test_batch.bin'}") as caught:
        read_cifar(folder)
    assert caught.value.received == 10


def test_a_missing_file_an_empty_folder_and_the_pickled_version_are_refused(tmp_path: Path) -> None:
    folder = binary(tmp_path / "bin")
    (folder / "data_batch_2.bin").unlink()
    with refused(str(folder / "data_batch_2.bin")):
        read_cifar(folder)
    (tmp_path / "empty").mkdir()
    with refused("data") as caught:
        read_cifar(tmp_path / "empty")
    assert "cifar-10-batches-bin" in caught.value.remedy
    (tmp_path / "py").mkdir()
    (tmp_path / "py" / "data_batch_1").write_bytes(b"\x80")
    with refused("data") as caught:
        read_cifar(tmp_path / "py")
    assert "pickle" in str(caught.value)
    with refused("data") as caught:
        read_cifar(tmp_path / "not" / "there")
    assert caught.value.received == str(tmp_path / "not" / "there")


# --- networks and training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_layer_of_the_grid_is_a_site_and_the_answer_has_ten_classes(name: str) -> None:
    net = NETWORKS[name].build().eval()
    found = {site.name.partition("#")[0] for site in find_sites(net, torch.zeros(2, 3, 32, 32))}
    assert {layer.partition("@")[0] for layer in NETWORKS[name].layers} <= found
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_network_is_the_papers() -> None:
    shapes = {name: tuple(value.shape) for name, value in CifarNet().state_dict().items() if name.endswith("weight")}
    assert shapes == {
        "conv1.weight": (16, 3, 3, 3), "conv2.weight": (32, 16, 3, 3), "conv3.weight": (64, 32, 3, 3),
        "fc1.weight": (128, 1024), "fc2.weight": (10, 128),
    }  # fmt: skip


def test_dropout_of_training_is_off_at_inference() -> None:
    torch.manual_seed(0)
    net = CifarNet({"fc1": 0.5})
    x = torch.randn(4, 3, 32, 32)
    assert not torch.equal(net.train()(x), net(x))
    assert torch.equal(net.eval()(x), net(x))


def test_batches_are_a_new_order_each_epoch_and_the_same_for_a_seed() -> None:
    images, labels = torch.arange(10.0).view(10, 1, 1, 1), torch.arange(10)

    def epochs() -> list[list[int]]:
        batches = ShuffledBatches(images, labels, 4, 7, CPU, lambda x, draws: x)
        return [[int(label) for _, y in batches for label in y] for _ in range(2)]

    first, second = epochs()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert epochs() == [first, second]


def test_augmentation_shifts_and_mirrors_whole_images() -> None:
    image = torch.arange(64.0).view(1, 1, 8, 8) + 1
    got = shift_and_mirror(image.repeat(200, 1, 1, 1), torch.Generator().manual_seed(0), margin=2)
    padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
    possible = [padded[0, 0, i : i + 8, j : j + 8] for i in range(5) for j in range(5)]
    possible += [crop.flip(1) for crop in possible]
    assert all(any(torch.equal(one[0], crop) for crop in possible) for one in got)
    assert len({tuple(one.flatten().tolist()) for one in got}) > 30


def test_the_grid_has_the_papers_size(cifar: CifarImages) -> None:
    assert len(Plan(cifar_task(cifar), PRESETS["paper"], Path()).evaluation().grid) == 19_998


# --- the study --------------------------------------------------------------------------------------------------------


def test_another_task_stands_beside_this_one_in_figures(done: Path) -> None:
    study = load_study(done)
    assert study.passes == 3
    assert study.task.layers == study.layers
    assert len(study.rows)
    with refused("beside"):
        load_study(done / "figures")


def test_a_study_leaves_rows_figures_tables_and_a_summary(done: Path) -> None:
    summary = (done / "summary.md").read_text()
    assert "seed 0" in summary
    assert "3 passes instead of 100" in summary
    assert summary.index("1. ") < summary.index("## Verdicts") < summary.index("## Claims in detail")
    first, second = load_results(done)
    assert len(first.rows) == len(second.rows) == 80 * 2 * 5
    assert {*first.rows.measure} == {
        "variation_predicted",
        "variation_max",
        "predictive_entropy",
        "expected_entropy",
        "bald",
    }
    assert first.inputs is not None
    assert len(first.inputs) == 15 * 5
    assert first.chosen is not None
    assert len(first.chosen) == 5
    assert list((done / "figures").glob("figure-1*.png"))
    assert list((done / "figures").glob("figure-1*.pdf"))
    assert (done / "tables" / "table-3.tex").exists()
    assert (done / "tables" / "claims.csv").exists()


def test_data_that_are_fewer_than_the_papers_are_said(cifar: CifarImages) -> None:
    said = smaller_than_paper(cifar_task(cifar), PRESETS["paper"])
    assert said == [
        "30 validation examples instead of the paper's 5,000",
        "60 test examples instead of the paper's 10,000",
    ]
    assert smaller_than_paper(cifar_task(cifar, "vit"), PRESETS["paper"]) == []


def test_accuracy_is_that_of_the_kept_weights(done: Path, cifar: CifarImages) -> None:
    net = load_weights(CifarNet(), done / "weights" / "seed-1.safetensors")
    with torch.no_grad():
        right = (net(scale_pixels(cifar.test_images[:40])).argmax(1) == cifar.test_labels[:40]).double().mean()
    assert load_results(done)[1].accuracy == pytest.approx(float(right))
    assert accuracy(net, scale_pixels(cifar.test_images[:40]), cifar.test_labels[:40], 7) == pytest.approx(float(right))


@pytest.mark.slow
def test_taken_up_again_nothing_is_trained_and_rows_are_the_same(done: Path, cifar: CifarImages) -> None:
    before = load_results(done)[0]
    (done / "results" / "seed-0" / "result.json").unlink()  # as if killed before the result was written

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    again = run_tiny(replace(cifar_task(cifar, **LIMITS), train=never), done)
    pd.testing.assert_frame_equal(again.results[0].rows, before.rows)


def test_a_folder_holds_one_study(done: Path, cifar: CifarImages) -> None:
    with refused("out") as caught:
        run_tiny(cifar_task(cifar, epochs=2), done)
    assert "task" in str(caught.value)


def test_weights_of_the_wrong_shape_are_refused_and_nothing_is_written(cifar: CifarImages, tmp_path: Path) -> None:
    save_weights(nn.Linear(3, 2), tmp_path / "other.safetensors")
    with refused("weights") as caught:
        run_tiny(cifar_task(cifar), tmp_path / "out", weights=tmp_path / "other.safetensors")
    assert "other.safetensors" in str(caught.value)
    torch.save(CifarNet().state_dict() | {"fc2.bias": torch.zeros(11)}, tmp_path / "wrong.pt")
    with refused("weights") as caught:
        run_tiny(cifar_task(cifar), tmp_path / "out", weights=tmp_path / "wrong.pt")
    assert caught.value.received == "(11,)"
    assert "'fc2.bias'" in str(caught.value)
    (tmp_path / "text.pt").write_text("no weights")
    with refused("weights") as caught:
        run_tiny(cifar_task(cifar), tmp_path / "out", weights=tmp_path / "text.pt")
    assert "text.pt" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_other_weights_of_the_same_name_are_not_answered_with_the_first_ones_results(
    cifar: CifarImages, tmp_path: Path
) -> None:
    files = [tmp_path / part / "net.safetensors" for part in ("a", "b")]
    for file in files:
        save_weights(CifarNet(), file)
    task, out = cifar_task(cifar, test=40, validation=20), tmp_path / "out"

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Plan(task, TINY, out, weights=(files[0],), progress=False), say=stop)
    with refused("out") as caught:
        run_tiny(task, out, weights=files[1])
    assert "weights" in str(caught.value)


def test_a_pickled_model_is_refused_without_advice_to_unpickle_it(tmp_path: Path) -> None:
    torch.save(CifarNet(), tmp_path / "model.pt")
    with refused("weights") as caught:
        load_weights(CifarNet(), tmp_path / "model.pt")
    assert "pickled" in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_both_forms_of_weights_give_the_same_network(tmp_path: Path) -> None:
    net = CifarNet()
    save_weights(net, tmp_path / "a.safetensors")
    torch.save({"state_dict": net.state_dict()}, tmp_path / "b.pt")
    x = torch.randn(2, 3, 32, 32)
    first, second = (load_weights(CifarNet(), tmp_path / name)(x) for name in ("a.safetensors", "b.pt"))
    assert torch.equal(first, net.eval()(x))
    assert torch.equal(first, second)


# --- the user's own model and the command -----------------------------------------------------------------------------

OWN = """
import torch
from torch import nn
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
def data():
    torch.manual_seed(1)
    return torch.randn(60, 3, 2, 2), torch.randint(0, 3, (60,))
"""


def test_an_own_model_is_split_into_choosing_and_reporting() -> None:
    scope: dict[str, object] = {}
    exec(OWN, scope)
    task = own_task(scope["model"](), scope["data"]())  # type: ignore[operator]
    assert task.layers == ("1", "3")
    assert task.penultimate == ("3",)
    assert len(task.validation[1]) == len(task.test[1]) == 30
    chosen = {tuple(x.flatten().tolist()) for x in task.validation[0]}
    assert chosen.isdisjoint({tuple(x.flatten().tolist()) for x in task.test[0]})
    assert task.positions == ("before_activation", "after_activation")
    assert task.masks_inputs
    with refused("sites") as caught:
        own_task(scope["model"](), scope["data"](), ["nope"])  # type: ignore[operator]
    assert caught.value.received == "nope"


@pytest.mark.slow
def test_the_command_runs_an_own_model_end_to_end(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    arguments = ["study", "where-to-drop", "--model", f"{tmp_path}/mine.py:model", "--data", f"{tmp_path}/mine.py:data"]
    arguments += ["--preset", "smoke", "--out", str(tmp_path / "out"), "--device", "cpu"]
    asked = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"])
    assert asked.exit_code == 0
    assert '"placements": 16' in asked.output
    assert not (tmp_path / "out").exists()
    arguments += ["--preregister", str(tmp_path / "plan.json")]
    registered = CliRunner().invoke(app, arguments)
    assert registered.exit_code == 0, registered.output
    assert not (tmp_path / "out").exists()
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    assert "are as registered" in (tmp_path / "out" / "summary.md").read_text()
    assert "undecided" in ran.output


def test_a_layer_named_twice_is_refused_before_any_work() -> None:
    scope: dict[str, Any] = {}
    exec(OWN, scope)
    with refused("sites") as caught:
        own_task(scope["model"](), scope["data"](), ["3", "3@input"])
    assert caught.value.received == "3"


def test_an_example_with_nan_is_named_before_any_work() -> None:
    scope: dict[str, Any] = {}
    exec(OWN, scope)
    images, labels = scope["data"]()
    images[3].view(-1)[0] = float("nan")
    images[5].view(-1)[1] = float("inf")
    with refused("data") as caught:
        own_task(scope["model"](), (images, labels))
    assert "2 of 60 examples (the first is number 3, from 0)" in str(caught.value)


@pytest.mark.slow
def test_data_that_is_refused_leaves_its_folder_free(tmp_path: Path) -> None:
    """Labels that count from 1, then labels that count from 0: no advice to repeat the broken command."""
    scope: dict[str, Any] = {}
    exec(OWN, scope)
    images, labels = scope["data"]()
    with refused("labels"):
        run_tiny(own_task(scope["model"](), (images, labels + 1)), tmp_path / "out")
    run_tiny(own_task(scope["model"](), (images, labels)), tmp_path / "out")


@pytest.mark.slow
def test_an_own_model_with_other_code_is_another_study(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(OWN, scope)
    net, data = scope["model"](), scope["data"]()
    run_tiny(own_task(net, data), tmp_path / "out")
    other = scope["model"]()
    other[4] = torch.nn.Tanh()
    with refused("out"):
        run_tiny(own_task(other, data), tmp_path / "out")


def test_the_fingerprint_of_cifar_sees_every_pixel(cifar: CifarImages) -> None:
    from dropscope.studies.where_to_drop.cifar import _fingerprint

    changed = replace(cifar, test_images=cifar.test_images.clone())
    assert _fingerprint(changed) == _fingerprint(cifar)
    changed.test_images[3, 1, 17, 19] ^= 1
    assert _fingerprint(changed) != _fingerprint(cifar)


def test_a_share_of_a_mean_of_0_is_left_out() -> None:
    from dropscope.studies.where_to_drop.claims.trends import _of_the_mean

    assert (_of_the_mean(-0.17), _of_the_mean(float("nan"))) == (", -17 % of the mean", "")


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("seeds", {"seeds": 0}),
        ("seeds", {"seeds": 2, "weights": "net.pt"}),
        ("seeds", {"seeds": 2, "model": "mine.py:model"}),
        ("epochs", {"epochs": 0}),
        ("epochs", {"epochs": -3}),
        ("train_dropout", {"train_dropout": True, "network": "vit"}),
        ("train_dropout", {"train_dropout": True, "task": "mammography"}),
        ("train_dropout", {"train_dropout": True, "weights": "net.pt"}),
        ("preset", {"preset": "tiny"}),
        ("network", {"network": "cnn-dropout"}),
        ("task", {"task": "mnist"}),
        ("split", {"split": "by_hand"}),
        ("augment", {"augment": "some"}),
        ("noise", {"noise": "poisson"}),
        ("preprocessing", {"preprocessing": "paper"}),
        ("positions", {"positions": "activation"}),
    ],
)
def test_options_that_cannot_be_are_refused_before_data_is_read(name: str, asked: dict[str, Any]) -> None:
    with refused(name):
        Options("not/there", **asked)


@pytest.mark.parametrize("noise", ["gaussian", "multinomial"])
def test_another_noise_goes_through_the_study_and_decides_no_number(noise: str, tmp_path: Path) -> None:
    options = Options(binary(tmp_path / "bin"), preset="smoke", device="cpu", out=tmp_path / "out", noise=noise)  # type: ignore[arg-type]
    planned = plan(options)
    outcome = run(replace(planned, size=replace(planned.size, rates=(0.5,), passes=3, test=40, train=60)))
    rows = outcome.results[0].rows
    assert rows["placement"].str.contains(f"noise={noise}").all()
    assert rows["placement"].nunique() == (15 if noise == "multinomial" else 30)
    assert {c.verdict for c in outcome.claims if c.name.startswith(("p_mean-", "single"))} == {"undecided"}
    text = (outcome.folder / "summary.md").read_text()
    assert f"{noise} noise instead of Bernoulli" in text


def test_training_with_dropout_judges_rules_and_no_numbers(tmp_path: Path) -> None:
    options = Options(binary(tmp_path / "bin"), preset="smoke", device="cpu", out=tmp_path / "out", train_dropout=True)
    outcome = run(plan(options))
    names = {claim.name for claim in outcome.claims}
    assert "beats-plain" in names
    assert "accuracy" not in names
    assert "trained with dropout on (conv1 0.1" in (outcome.folder / "summary.md").read_text()


@pytest.mark.slow
def test_networks_trained_ahead_are_those_trained_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(binary(tmp_path / "bin"), preset="smoke", seeds=2, device="cpu", out=tmp_path / "out")
    planned = plan(options)
    alone = study_module._network(planned, 1).state_dict()
    for path in (tmp_path / "out" / "weights").iterdir():
        path.unlink()
    study_module._train_ahead(planned)
    assert not list((tmp_path / "out" / "weights").iterdir())  # a CPU has no room for two
    monkeypatch.setattr(study_module, "_has_room", lambda device: True)
    study_module._train_ahead(planned)
    assert sorted(p.name for p in (tmp_path / "out" / "weights").glob("*.safetensors")) == [
        "seed-0.safetensors", "seed-1.safetensors",
    ]  # fmt: skip
    ahead = study_module._network(planned, 1).state_dict()
    assert all(torch.equal(value, ahead[name]) for name, value in alone.items())


def test_a_plan_reads_its_data_and_writes_nothing(tmp_path: Path) -> None:
    options = Options(binary(tmp_path / "bin"), preset="smoke", seeds=2, device="cpu", out=tmp_path / "out")
    planned = plan(options)
    assert planned.facts()["networks to train"] == 2
    assert planned.task.name == "cifar10-cnn"
    assert plan(replace(options, train_dropout=True)).task.name == "cifar10-cnn-dropout"
    with refused("weights"):
        plan(replace(options, seeds=1, weights=tmp_path / "gone.safetensors"))
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        (["--data", str(tmp_path)], "cifar-10-batches-bin"),
        (["--data", str(tmp_path), "--seeds", "0"], "--seeds"),
        (["--data", str(tmp_path), "--epochs", "0"], "--epochs"),
        (["--data", str(tmp_path), "--epochs", "-3"], "-3"),
        (["--data", str(tmp_path), "--train-dropout", "--network", "vit"], "--train-dropout"),
    ):
        got = CliRunner().invoke(app, ["study", "where-to-drop", *arguments, "--out", str(tmp_path / "out")])
        assert got.exit_code == 2
        assert words in got.output
        assert "Traceback" not in got.output
    assert not (tmp_path / "out").exists()
