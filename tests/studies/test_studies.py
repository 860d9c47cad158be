"""Summaries, tables, folders, training and weights, which the studies share."""

from __future__ import annotations

import copy
import shutil
import subprocess
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from dropscope.errors import BadInput
from dropscope.loading import load_weights
from dropscope.report.claims import Claim
from dropscope.report.figures import evidence
from dropscope.report.summaries import by_variant, write_summary
from dropscope.report.typesetting import latex
from dropscope.report.writing import claim_folder, new_figure, write_figure, write_table
from dropscope.studies.training import History, Recipe, fit, save_weights, trained_once
from support.broken_checkpoints import BROKEN
from support.errors import refused


def claim(verdict: str) -> Claim:
    return Claim("a", f"It {verdict}", ".5", ".4 (.3 to .5)", verdict, "t interval")  # type: ignore[arg-type]


def test_a_summary_counts_its_verdicts_and_says_what_is_smaller(tmp_path: Path) -> None:
    claims = [claim("undecided"), claim("supported"), claim("contradicted")]
    summary = write_summary(tmp_path, "Title", ["Use A.", "Not B."], claims, ["Text."], ["T"])
    text = (tmp_path / "summary.md").read_text()
    order = ["# Title", "1. Use A.", "2. Not B.", "3 claims: 1 supported", "| supported | It supported |", "Text."]
    places = [text.index(part) for part in (*order, "**It supported — supported**", "- T")]
    assert places == sorted(places)
    assert summary.answer == ("Use A.", "Not B.")
    assert summary.verdicts.verdict.tolist() == ["supported", "contradicted", "undecided"]  # decided ones first
    assert (tmp_path / "tables" / "claims.csv").exists()


def test_the_table_of_verdicts_has_what_decided(tmp_path: Path) -> None:
    def of(case: str) -> Claim:
        brief = {"a": "-0.2 (-0.3 to -0.1), published 0.4", "b": "0.1 (0.0 to 0.2)"}[case]
        return Claim(case, f"It falls ({case})", "said", "another number", "supported", "by t", brief=brief)

    alone = replace(of("a"), statement="It rises")
    summary = write_summary(
        tmp_path, "Title", [], [of("a"), of("b"), alone], [], None, by_variant("a", "b"), {"AURC": "x"}
    )
    lines = summary.verdicts.set_index("claim").here
    assert lines["It rises"] == alone.brief
    assert lines["It falls"] == "a -0.2, published 0.4; b 0.1"
    text = (tmp_path / "summary.md").read_text()
    assert "- *AURC*: x" in text
    assert all(f"*{word}*" in text for word in ("Supported", "Contradicted", "Equivalent", "Undecided"))


def test_claims_that_differ_in_one_word_share_a_line_and_what_they_have_in_common(tmp_path: Path) -> None:
    def of(measure: str, verdict: str) -> Claim:
        words = (f"n {measure}", f"It falls ({measure})", "said", f"here {measure}", verdict, "by t")
        return Claim(*words, quotation="a quotation")  # type: ignore[arg-type]

    claims = [of("a", "supported"), of("b", "undecided"), of("c", "supported"), claim("undecided")]
    summary = write_summary(tmp_path, "Title", [], claims, [], None, by_variant("a", "b", "c"))
    lines = summary.verdicts.set_index(["claim", "verdict"]).here
    assert lines["It falls", "supported"] == "a, c"
    assert lines["It falls", "undecided"] == "b"
    text = (tmp_path / "summary.md").read_text()
    assert text.count("a quotation") == 1
    assert all(f"here {measure}" in text for measure in "abc")
    assert "Smaller" not in text


HARD = "− ↑ ↓ → ≤ ≥ × ± σ Δ μ “q” – … ² ½ é ü ł [x] *y <a> | ^ ~ \\ & % $ # _ { } ` ' \" † 中 ✓ \n"


def test_latex_is_ascii_whatever_a_table_holds() -> None:
    text = latex(pd.DataFrame({HARD: [HARD, "[1] *", "−0.1"]}), HARD, "l")
    assert text.isascii()
    for sign in "&%$#_":
        assert f"\\{sign}" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path: Path) -> None:
    table = pd.DataFrame({HARD: [HARD, "[1]", "*"], "value ↓": [0.1, float("nan"), -3.0], "long": ["word " * 30] * 3})
    long = write_table(tmp_path, "one_1", table, HARD)[2].read_text()
    short = write_table(tmp_path, "two", table[["value ↓"]], HARD)[2].read_text()
    page = (
        f"\\documentclass{{article}}\\usepackage{{booktabs,longtable}}\\begin{{document}}{long}{short}\\end{{document}}"
    )
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert made.returncode == 0, made.stdout.decode(errors="replace")[-1000:]
    assert (tmp_path / "page.pdf").exists()


def test_a_table_comes_in_three_forms_and_a_figure_in_two(tmp_path: Path) -> None:
    table = pd.DataFrame({"name": ["a_b", "c%"], "value": [0.123456, float("nan")]})
    csv, markdown, tex = write_table(tmp_path, "one", table, "Caption")
    pd.testing.assert_frame_equal(pd.read_csv(csv), table)
    assert "| a_b | 0.1235 |" in markdown.read_text()
    assert "a\\_b & 0.1235" in tex.read_text()
    figure = new_figure()
    figure.add_subplot().plot([0, 1])
    png, pdf = write_figure(tmp_path, "one", figure, evidence(images=9, passes=5, networks=1))
    with Image.open(png) as picture:
        assert picture.mode in ("RGB", "RGBA")
    assert pdf.read_bytes()[:4] == b"%PDF"


def test_latex_has_as_many_columns_as_the_table() -> None:
    text = latex(pd.DataFrame({"a": ["1"], "b": ["x & y"]}), "C", "l")
    assert "\\begin{tabular}{rl}" in text
    assert "x \\& y" in text


def test_a_folder_holds_one_study(tmp_path: Path) -> None:
    claim_folder(tmp_path, {"passes": 3, "rates": (0.1, 0.2)})
    claim_folder(tmp_path, {"passes": 3, "rates": [0.1, 0.2]})
    with pytest.raises(BadInput) as caught:
        claim_folder(tmp_path, {"passes": 4, "rates": [0.1, 0.2]})
    assert "passes" in str(caught.value)
    assert "rates" not in str(caught.value)


def recipe(epochs: int, scores: list[float]) -> Recipe:
    left = iter(scores)

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.mse_loss(net(batch[0]), batch[1])

    return Recipe(epochs, loss, lambda net: next(left), lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def batches() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 8, 3, generator=draw)
    return [(part, part.sum(1, keepdim=True)) for part in x]


def test_the_weights_of_the_best_epoch_are_kept_and_random_state_is_as_before() -> None:
    state = torch.get_rng_state()
    nets = []
    for epochs, scores in ((2, [0.0, 1.0]), (4, [0.1, 0.9, 0.2, float("nan")])):
        torch.manual_seed(0)
        nets.append(nn.Linear(3, 1))
        before = torch.get_rng_state()
        history = fit(nets[-1], recipe(epochs, scores), batches(), seed=1, show=False)
        assert torch.equal(before, torch.get_rng_state())
        assert history.best == 1
    assert torch.equal(nets[0].weight, nets[1].weight)  # two epochs, whether more followed or not
    assert not nets[0].training
    assert history.losses[-1] < history.losses[0]
    torch.set_rng_state(state)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_training_is_the_textbook_loop(precision: str) -> None:
    """Clipped, scheduled Adam written out by hand gives the same weights to the bit; on a CPU fp16 becomes bf16."""
    optimizer, clip = partial(torch.optim.Adam, lr=0.05), 0.1
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR
    asked = replace(recipe(3, [0.0, 1.0, 2.0]), optimizer=optimizer, schedule=schedule, clip=clip, precision=precision)
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    by_hand = copy.deepcopy(ours)
    history = fit(ours, asked, batches(), seed=1, show=False)

    torch.manual_seed(1)
    steps = optimizer(by_hand.parameters())
    rates = schedule(steps, 3 * len(batches()))
    losses = []
    for _ in range(3):
        epoch = []
        for batch in batches():
            with torch.autocast("cpu", torch.bfloat16, enabled=precision != "32-true"):
                loss = asked.loss(by_hand, batch)
            steps.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(by_hand.parameters(), clip)
            steps.step()
            rates.step()
            epoch.append(loss.detach())
        losses.append(float(torch.stack(epoch).mean()))
    assert history == History(tuple(losses), (0.0, 1.0, 2.0), 2)
    assert all(torch.equal(value, by_hand.state_dict()[name]) for name, value in ours.state_dict().items())


def test_a_recipe_that_cannot_run_is_refused_before_the_network_is_touched() -> None:
    net = nn.Linear(3, 1)
    before = net.weight.detach().clone()
    with refused("epochs"):
        fit(net, recipe(0, []), batches(), seed=1, show=False)
    with refused("precision"):
        fit(net, replace(recipe(1, [0.5]), precision="64-true"), batches(), seed=1, show=False)
    assert torch.equal(net.weight, before)


def test_a_network_is_trained_once_and_must_be_the_one_that_was_asked_for(tmp_path: Path) -> None:
    trained: list[int] = []

    def train(net: nn.Module) -> History:
        trained.append(1)
        return fit(net, recipe(1, [0.5]), batches(), seed=1, show=False)

    at = tmp_path / "weights" / "a.safetensors"
    first = trained_once(at, lambda: nn.Linear(3, 1), train, {"seed": 1})
    again = trained_once(at, lambda: nn.Linear(3, 1), train, {"seed": 1})
    assert len(trained) == 1
    assert torch.equal(first.weight, again.weight)
    with refused("out") as caught:
        trained_once(at, lambda: nn.Linear(3, 1), train, {"seed": 2})
    assert "seed" in str(caught.value)
    assert len(trained) == 1


def test_a_missing_weights_file_is_named(tmp_path: Path) -> None:
    with refused("weights") as caught:
        load_weights(nn.Linear(2, 2), tmp_path / "gone.safetensors")
    assert str(caught.value.received).endswith("gone.safetensors")


@pytest.mark.parametrize("name", [name for name in BROKEN if name.startswith("weights: ") and "family" not in name])
def test_broken_weights_are_refused(name: str, tmp_path: Path) -> None:
    save_weights(nn.Linear(20, 20), tmp_path / "model.safetensors")
    BROKEN[name](tmp_path)
    with refused("weights"):
        load_weights(nn.Linear(20, 20), tmp_path / ("pytorch_model.bin" if "pickle" in name else "model.safetensors"))
    assert not (tmp_path / "code-ran").exists()


def test_weights_that_unpack_to_more_than_their_file_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1000, 1000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for entry in plain.infolist():
            small.writestr(entry.filename, plain.read(entry))
    with refused("weights") as caught:
        load_weights(nn.Linear(1000, 1000, bias=False), tmp_path / "small.pt")
    assert "unpack" in str(caught.value)
    assert not load_weights(nn.Linear(1000, 1000, bias=False), tmp_path / "plain.pt").weight.any()
