"""How much nearer to their limit are stratified passes? Errors of what is computed from T passes, over repeated runs.

    python benchmarks/draws.py --data DIR --weights FILE … [--images N] [--passes T …] [--repeats R] [placement ...]
    python benchmarks/draws.py --model hf:CHECKPOINT --data TEXTS.csv [placement ...]

DIR holds cifar-10-batches-bin/test_batch.bin, each FILE weights of the network of the study `where-to-drop`. The limit
is a long run under another seed. Ratios are mean squared errors of independent passes over those of stratified ones: of
several networks their geometric mean with a t interval over networks, of one with an interval over images. Bias is the
mean error over repeats in units of its standard error, about 1 where there is none. A flip is an example that is
deferred by so many passes and kept by the limit, or the reverse, where the tenth of most predictive entropy is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from scipy import stats
from torch import Tensor, nn

import dropscope as ds
from dropscope.loading import load_data, load_model
from gpu_grid import CifarNet, test_images

PLACEMENTS = ["fc1=.5", "fc1=.2", "conv3=.3,fc1=.5", "conv2=.3,conv3=.3,fc1=.3"]
NAMES = ("mean probability", "predictive entropy", "expected entropy", "bald")
BLOCK = 16
DEFERRED = 0.1
DRAWS = ("independent", "stratified")


def estimates(p: Tensor) -> list[Tensor]:
    """Of passes `[..., passes, images, classes]`: mean, predictive entropy, expected entropy, BALD, classes last."""
    p = p.double()
    mean = p.mean(-3)
    predictive = -torch.xlogy(mean, mean).sum(-1, keepdim=True)
    expected = -torch.xlogy(p, p).sum(-1, keepdim=True).mean(-3)
    return [mean, predictive, expected, predictive - expected]


def in_windows(drawn: Tensor, passes: int, repeats: int) -> list[Tensor]:
    """`[repeats, images, …]` for each name: whole blocks are skipped between repeats, which are independent so."""
    apart = -(-passes // BLOCK) * BLOCK
    found = [estimates(drawn[start : start + passes]) for start in range(0, apart * repeats, apart)]
    return [torch.stack(values) for values in zip(*found, strict=True)]


def mean_squares(errors: list[Tensor]) -> list[np.ndarray]:
    """The mean squared error of each image, for each name."""
    return [error.square().mean((0, 2)).cpu().numpy() for error in errors]


def flips(entropy: Tensor, limit: Tensor) -> float:
    """The share of decisions of `[repeats, images, 1]` that differ from those of the limit."""
    threshold = limit.quantile(1 - DEFERRED)
    return float(((entropy > threshold) != (limit > threshold)).double().mean())


def bias(error: Tensor, of_limit: Tensor) -> float:
    """The mean error over repeats in units of its standard error, both as root mean squares over images.

    `of_limit` is the variance of the limit itself.
    """
    expected = error.var(0) / len(error) + of_limit
    return float((error.mean(0).square().mean() / expected.mean()).sqrt())


def measure(net: nn.Module, inputs: object, placement: str, options: argparse.Namespace) -> list[dict[str, object]]:
    """A record for each number of passes: mean squared errors, flips and biases of both draws."""
    common = {"device": options.device, "progress": False}
    exact = estimates(ds.sample(net, placement, inputs, options.limit, seed=1, draws="stratified", **common))
    length = max(-(-passes // BLOCK) for passes in options.passes) * BLOCK * options.repeats
    records = []
    drawn = {draws: ds.sample(net, placement, inputs, length, draws=draws, **common) for draws in DRAWS}
    for passes in options.passes:
        record: dict[str, object] = {"placement": placement, "passes": passes}
        errors = {}
        for draws, p in drawn.items():
            found = in_windows(p, passes, options.repeats)
            errors[draws] = [value - limit for value, limit in zip(found, exact, strict=True)]
            record[f"{draws}_squares"] = [list(map(float, square)) for square in mean_squares(errors[draws])]
            record[f"{draws}_flips"] = flips(found[1], exact[1])
        of_limit = [error.var(0) * passes / options.limit for error in errors["stratified"]]
        for draws, found in errors.items():
            record[f"{draws}_bias"] = [bias(*pair) for pair in zip(found, of_limit, strict=True)]
        records.append(record)
    return records


def ratio(records: list[dict[str, object]], name: int) -> tuple[float, float, float]:
    """Independent over stratified, with a 95 % interval: over networks, or over the images of one."""
    squares = [[np.array(record[f"{draws}_squares"][name]) for draws in DRAWS] for record in records]
    if len(records) > 1:
        logs = np.log([own[0].mean() / own[1].mean() for own in squares])
        half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
        return tuple(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))
    [(independent, stratified)] = squares
    chosen = np.random.default_rng(0).integers(0, len(independent), (2000, len(independent)))
    found = independent[chosen].mean(1) / stratified[chosen].mean(1)
    return independent.mean() / stratified.mean(), *np.quantile(found, (0.025, 0.975))


def print_table(records: list[dict[str, object]], passes: int) -> None:
    print(f"\nT = {passes}: mean squared error of independent passes ÷ that of stratified ones (95 % interval)\n")
    print(f"| placement | {' | '.join(NAMES)} | largest bias, independent | stratified |\n|{'---|' * (len(NAMES) + 3)}")
    for placement in dict.fromkeys(record["placement"] for record in records):
        own = [record for record in records if (record["placement"], record["passes"]) == (placement, passes)]
        shown = " | ".join("{:.2f}× ({:.2f} to {:.2f})".format(*ratio(own, name)) for name in range(len(NAMES)))
        worst = [max(max(record[f"{draws}_bias"]) for record in own) for draws in DRAWS]
        print(f"| {placement} | {shown} | {worst[0]:.2f} | {worst[1]:.2f} |")


def print_curve(records: list[dict[str, object]]) -> None:
    print("\nRoot mean squared error of the mean probability, and flips at 10 % deferred, independent / stratified\n")
    print("| placement | passes | mean probability | bald | flips |\n|---|---|---|---|---|")
    for placement, passes in dict.fromkeys((record["placement"], record["passes"]) for record in records):
        own = [record for record in records if (record["placement"], record["passes"]) == (placement, passes)]
        cells = []
        for name in (0, 3):
            roots = [np.mean([record[f"{draws}_squares"][name] for record in own]) ** 0.5 for draws in DRAWS]
            cells.append("{:.4f} / {:.4f}".format(*roots))
        share = [np.mean([record[f"{draws}_flips"] for record in own]) for draws in DRAWS]
        print(f"| {placement} | {passes} | {' | '.join(cells)} | {share[0]:.2%} / {share[1]:.2%} |")


def draw(records: list[dict[str, object]], path: Path) -> None:
    """Errors and flips against the number of passes, for both draws."""
    import matplotlib.pyplot as plt

    passes = sorted({record["passes"] for record in records})
    figure, (mean, bald, flipped) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    for place, placement in enumerate(dict.fromkeys(record["placement"] for record in records)):
        own = [[r for r in records if (r["placement"], r["passes"]) == (placement, t)] for t in passes]
        for draws, line, mark in zip(DRAWS, ("--", "-"), ("o", "s"), strict=True):
            style = {"color": f"C{place}", "marker": mark, "ms": 4, "mfc": "white" if line == "--" else f"C{place}"}
            for axes, name in ((mean, 0), (bald, 3)):
                roots = [np.mean([r[f"{draws}_squares"][name] for r in some]) ** 0.5 for some in own]
                axes.plot(passes, roots, line, label=f"{placement}, {draws}", **style)
            flipped.plot(passes, [100 * np.mean([r[f"{draws}_flips"] for r in some]) for some in own], line, **style)
    titles = "error of the mean probability", "error of BALD (nats)", "decisions that flip (%), 10 % deferred"
    for axes, title in zip((mean, bald, flipped), titles, strict=True):
        axes.set(xscale="log", yscale="linear" if axes is flipped else "log", xlabel="passes", title=title)
        axes.set_xticks(passes, map(str, passes))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    mean.set_yticks([0.005, 0.01, 0.02, 0.05], [".005", ".01", ".02", ".05"])
    bald.set_yticks([0.03, 0.05, 0.1, 0.2, 0.3], [".03", ".05", ".1", ".2", ".3"])
    flipped.set_ylim(0)
    figure.legend(*mean.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    networks, images = len({record.get("network") for record in records}), len(records[0]["independent_squares"][0])
    corner = {"transform": flipped.transAxes, "ha": "right", "va": "top", "fontsize": 8}
    flipped.text(0.98, 0.97, f"{networks} networks, {images} images", **corner)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("placements", nargs="*", default=PLACEMENTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, nargs="+", default=[])
    parser.add_argument("--model", help="instead of weights: a checkpoint, whose texts are --data")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--passes", type=int, nargs="+", default=[100])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--limit", type=int, default=8000, help="passes of the long run")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    records = []
    if options.model:
        loaded = load_model(options.model)
        texts = load_data(str(options.data), loaded)
        for placement in options.placements:
            records += measure(loaded.module, texts, placement, options)
    for weights in options.weights:
        net = CifarNet()
        net.load_state_dict(load_file(weights))
        images, labels = test_images(options.data, 1000)
        print(f"{weights.name}: accuracy {(net(images).argmax(1) == labels).float().mean():.3f}", flush=True)
        for placement in options.placements:
            found = measure(net, images[: options.images], placement, options)
            records += [{"network": weights.name, **record} for record in found]
    print(f"\n{options.images} images, {options.repeats} repeats, limit of {options.limit} passes")
    for passes in options.passes:
        print_table(records, passes)
    print_curve(records)
    if options.json is not None:
        options.json.write_text(json.dumps(records))
    if options.figure is not None:
        draw(records, options.figure)


if __name__ == "__main__":
    main()
