"""The cases of `models.py`: the architectures of the tests in a larger size, and named claims, each with its bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dropscope as ds
from dropscope.engine import Session
from dropscope.errors import AuditFailed
from dropscope.placement import as_placement
from nets import resnet20, resnet50, unet3d

sys.path.append(str(Path(__file__).parents[1] / "tests"))

NINE = tuple(i / 10 for i in range(1, 10))
Built = tuple[nn.Module, Any, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A model, its data, and placements to run on it."""

    name: str
    build: Callable[[], tuple[nn.Module, Any, dict[str, Any]]]  # model, inputs, options of the session
    placements: Callable[[Session], Sequence[str]]
    passes: int
    batch_size: int = 256
    convolutions: bool = False  # TF32 makes a difference
    precision: str = "fp32"
    bar: float | None = None  # that the ratio must reach
    kind: str = ""


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(options: argparse.Namespace) -> Iterator[Case]:
    """In their full sizes, or with `--quick` so small that a laptop runs them in a minute."""
    quick = options.quick
    yield from _resnet20(options, images=64 if quick else 2000)
    yield from _resnet50(quick)
    try:
        import transformers  # noqa: F401
    except ImportError:
        print("Left out: BERT and ViT (transformers is not installed).")
    else:
        yield from _bert(quick)
        yield from _vit(quick)
    yield from _unet(quick)


def raised(model: nn.Module, last: str) -> nn.Module:
    """The model with a last layer so large that random weights give passes that differ visibly."""
    with torch.no_grad():
        model.get_submodule(last).weight.mul_(20)  # type: ignore[operator, union-attr]
    return model


def images(count: int, size: int) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def convolutions(session: Session) -> list[str]:
    """Those on the main path, in call order: no shortcuts, as the claims count them."""
    sites = [site.module for site in session.site_map.sites if site.kind == "conv" and "downsample" not in site.module]
    return list(dict.fromkeys(sites))


def each(sites: Callable[[Session], Sequence[str]], rates: Sequence[float]) -> Callable[[Session], list[str]]:
    return lambda session: [f"{site}={rate:g}" for site in sites(session) for rate in rates]


def _resnet20(options: argparse.Namespace, images: int) -> Iterator[Case]:
    def build() -> Built:
        x = torch.randn(images, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        return resnet20(options.weights) if options.weights else raised(resnet20(), "fc"), x, {}

    few = options.quick
    same: dict[str, Any] = {"batch_size": 1000, "convolutions": True}
    rates = NINE[::4] if few else NINE
    yield Case("ResNet-20, one site × 9 rates", build, each(convolutions, rates), 2 if few else 20, bar=3, **same)

    def grid(session: Session) -> list[str]:
        return [str(p) for p in ds.PlacementGrid(convolutions(session)[-3:], rates=rates)]

    yield Case("ResNet-20, grid of 3 late sites", build, grid, 2 if few else 20, bar=60, **same)
    six = [f"all.conv={rate:g}" for rate in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)]
    yield Case("ResNet-20, all convolutions", build, lambda _: six, 2 if few else 50, bar=1, **same)


def _resnet50(quick: bool) -> Iterator[Case]:
    def build() -> Built:
        x = images(4 if quick else 64, 64 if quick else 224)
        return raised(resnet50(8 if quick else 64), "fc"), x, {}

    same: dict[str, Any] = {"batch_size": 64, "convolutions": True}
    passes = 2 if quick else 20
    some = each(lambda session: convolutions(session)[:: 16 if quick else 4], (0.2, 0.5))
    yield Case("ResNet-50, one site × 2 rates", build, some, passes, bar=2.5, **same)
    yield Case("ResNet-50, all convolutions", build, lambda _: ["all.conv=0.1", "all.conv=0.3"], passes, bar=1, **same)


def _bert(quick: bool) -> Iterator[Case]:
    def build() -> Built:
        from transformers import BertConfig, BertForSequenceClassification

        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        model = BertForSequenceClassification(BertConfig(num_labels=3, **(sizes if quick else {}))).eval()
        count, length = (4, 16) if quick else (200, 128)
        ids = torch.randint(1000, 30000, (count, length), generator=torch.Generator().manual_seed(0))
        return raised(model, "classifier"), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, {}

    def last_block(session: Session) -> str:
        return f"bert.encoder.layer.{session.model.config.num_hidden_layers - 1}"  # type: ignore[union-attr]

    pairs = [f"attention={a},ffn={f}" for a in (0.1, 0.2, 0.3) for f in (0.1, 0.2, 0.3)]
    passes = 2 if quick else 20
    yield Case("BERT, attention × ffn", build, lambda _: pairs, passes, 200, bar=1.3)
    yield Case("BERT, attention × ffn, bf16", build, lambda _: pairs, passes, 200, precision="bf16", bar=6)
    last = each(lambda session: [f"{last_block(session)}@output"], NINE)
    yield Case("BERT, last block × 9 rates", build, last, 2 if quick else 100, 200, bar=100)
    inner = each(lambda session: [f"{last_block(session)}.intermediate.dense"], NINE)
    yield Case("BERT, hidden layer of the last block × 9 rates", build, inner, 2 if quick else 100, 200)


def _vit(quick: bool) -> Iterator[Case]:
    def build() -> Built:
        from transformers import ViTConfig, ViTForImageClassification

        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        model = ViTForImageClassification(ViTConfig(num_labels=10, **(sizes if quick else {}))).eval()
        return raised(model, "classifier"), images(4 if quick else 64, 224), {}

    def hidden(session: Session) -> list[str]:
        return [site.module for site in session.site_map.sites if site.kind == "ffn"]

    yield Case("ViT, one site a block × 2 rates", build, each(hidden, (0.2, 0.5)), 2 if quick else 20, 64, bar=2)


def _unet(quick: bool) -> Iterator[Case]:
    def build() -> Built:
        size = (2, 1, 16, 16, 16) if quick else (8, 1, 96, 96, 32)
        x = torch.randn(*size, generator=torch.Generator().manual_seed(2))
        return unet3d(4 if quick else 16), x, {}

    same: dict[str, Any] = {"batch_size": 8, "convolutions": True}
    passes = 2 if quick else 200

    def late(session: Session) -> list[str]:
        return [f"{site}={rate}" for site in convolutions(session)[-3:] for rate in (0.2, 0.5)]

    yield Case("3-D U-Net, late sites × 2 rates", build, late, passes, bar=4, **same)
    yield Case("3-D U-Net, all sites", build, lambda _: ["all.conv=0.1", "all.conv=0.3"], passes, bar=1, **same)


# --- over the zoo -----------------------------------------------------------------------------------------------------

_LAYERS = ("conv", "linear", "ffn", "recurrent", "attention", "embedding")
_RATES = (0.2, 0.5)


def one_at_a_time(session: Session, sites: int, kinds: Sequence[str] = _LAYERS) -> list[str]:
    """So many sites, evenly spaced in call order, each alone at two rates."""
    modules = dict(session.model.named_modules())
    known = {s.module: s for s in session.site_map.sites if s.kind in kinds and s.module in modules}
    every = list(known.values())
    chosen = every[:: max(1, -(-len(every) // sites))]
    texts = [[f"{site.module}@{site.positions[0]}={rate}" for rate in _RATES] for site in chosen]
    return [text for at_rates in texts if _has_effect(session, at_rates[0]) for text in at_rates]


def _has_effect(session: Session, text: str) -> bool:
    """Whether noise there reaches the output: where Longformer attends globally, its local queries do not."""
    placement = as_placement(text)
    try:
        session.audit_all(session.resolve([placement]), [placement])
    except AuditFailed:
        return False
    return True


def group(session: Session) -> list[str]:
    """Attention and feed-forward layers together, all convolutions, or whatever layers there are."""
    kinds = {site.kind for site in session.site_map.sites}
    if "attention" in kinds:
        return [f"all.attention={rate}" + (f",all.ffn={rate}" if "ffn" in kinds else "") for rate in _RATES]
    return [f"{'all.conv' if 'conv' in kinds else 'all'}={rate}" for rate in _RATES]


def zoo_cases(options: argparse.Namespace) -> Iterator[Case]:
    from support.architectures import ARCHITECTURES, available

    scale, examples, passes = options.scale, options.examples, options.passes
    for entry in ARCHITECTURES.values():
        if not available(entry):
            print(f"Left out: {entry.name} ({entry.needs} is not installed).")
            continue

        def build(entry: Any = entry) -> tuple[nn.Module, Any, dict[str, Any]]:
            return entry.build(examples, scale)

        ways: dict[str, Callable[[Session], Sequence[str]]] = {
            "one site at a time": lambda session: one_at_a_time(session, options.sites),
            "a group": group,
            "last": lambda session: [f"all.last={rate}" for rate in _RATES],
        }
        convolutions = entry.kind in ("vision", "volume")
        for way, placements in ways.items():
            name = f"{entry.name}, {way}"
            yield Case(name, build, placements, passes, convolutions=convolutions, kind=way)
