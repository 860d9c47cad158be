"""Rivals of several forwards: augmented inputs, batch statistics drawn anew, networks that were trained apart.

The mean over the forwards predicts. Which measure of them ranks best is chosen on the fitting examples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dropscope.checks import check_choice, check_count
from dropscope.data import Batch
from dropscope.deploy.rivals.answers import Answer, Scorer
from dropscope.deploy.rivals.forwards import PlainPass, several_forwards
from dropscope.engine import Session, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.loading import load_model, load_weights
from dropscope.measures import DEFAULT, TABLE
from dropscope.model import Call, state_kept

View = Callable[[Tensor], Tensor]
SEVERAL = (*DEFAULT, "max_probability", "margin")  # measures of several forwards
ROWS = tuple(TABLE[name] for name in SEVERAL)
_SHIFT = 8  # a crop moves an image by this share of its side
_WEIGHTS = (".pt", ".pth", ".bin", ".safetensors")


# --- augmented inputs -------------------------------------------------------------------------------------------------


def _mirror(images: Tensor) -> Tensor:
    return images.flip(-1)


def _shift(down: int, right: int) -> View:
    """Moves images by an eighth of their sides; what is left free shows the mirrored border."""

    def view(images: Tensor) -> Tensor:
        high, wide = (max(1, side // _SHIFT) for side in images.shape[-2:])
        padded = nn.functional.pad(images, (wide, wide, high, high), mode="reflect")
        top, left = high * (1 + down), wide * (1 + right)
        return padded[..., top : top + images.shape[-2], left : left + images.shape[-1]]

    return view


VIEWS: dict[str, tuple[View, ...]] = {
    "flips": (_mirror,),
    "crops": tuple(_shift(down, right) for down in (-1, 1) for right in (-1, 1)),
}


@dataclass(frozen=True)
class Augmentation:
    """Test-time augmentation: the mean over views of an image, the image itself first.

    Attributes:
        views: "flips" (mirrored left to right), "crops" (four, each moved by an eighth of the sides towards a corner),
            or functions from images `[n, C, H, W]` to images of the same shape.

    Examples:
        >>> len(Augmentation(["flips", "crops", lambda images: images * 0.9]).functions)
        6
    """

    views: Sequence[str | View] = ("flips",)

    @property
    def functions(self) -> list[View]:
        """Every view except the image itself."""
        found: list[View] = []
        for view in self.views:
            if isinstance(view, str):
                check_choice(view, "views", VIEWS)
            found += VIEWS[view] if isinstance(view, str) else [view]
        return found

    @property
    def forwards(self) -> int:
        """How often an example is run."""
        return 1 + len(self.functions)

    def __call__(self, seen: PlainPass) -> Answer:
        """The answer from all views."""
        session = seen.session
        if not any(_is_image(tensor) for tensor in session.data.batches[0].call.tensors):
            received = Phrase("inputs that are no images [n, C, H, W]")
            raise BadInput("augmentation must have images", "rivals", received, "leave it out for this data")

        def forward(view: View) -> Callable[[Batch], Tensor]:
            def run(batch: Batch) -> Tensor:
                with session.disturbed({}):
                    return session.forward(_viewed(batch.call.to(session.device), view))

            return run

        return several_forwards(seen, [forward(view) for view in (lambda images: images, *self.functions)], ROWS)


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point()


def _viewed(call: Call, view: View) -> Call:
    def changed(tensor: Tensor) -> Tensor:
        if not _is_image(tensor):
            return tensor
        images = view(tensor)
        if not isinstance(images, Tensor) or images.shape != tensor.shape:
            received = Phrase(f"shape {tuple(getattr(images, 'shape', ()))} for {tuple(tensor.shape)}")
            raise BadInput("views must keep the shape of images", "views", received, "pad or resize in the view")
        return images

    return call.map(changed)


# --- batch statistics -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MonteCarloBatchNorm:
    """Batch normalisation with the statistics of random batches instead of those of the training (Teye et al. 2018).

    Attributes:
        passes: How many batches, and so forwards.
        batch_size: Fitting examples in each.
        seed: Of their choice.
    """

    passes: int = 20
    batch_size: int = 32
    seed: int = 0

    @property
    def forwards(self) -> int:
        """How often an example is run."""
        return self.passes

    def fit(self, fitting: PlainPass) -> Scorer:
        """Takes the statistics of every batch; no labels are used."""
        check_count(self.passes, "passes", 20)
        check_count(self.batch_size, "batch_size", 32)
        session = fitting.session
        if not norms(session.running):
            received, remedy = Phrase("a model without any"), "leave mc_batchnorm out"
            raise BadInput("rival 'mc_batchnorm' must have batch normalisation", "rivals", received, remedy)
        draw = torch.Generator().manual_seed(self.seed)
        drawn = []
        with torch.no_grad(), session.sealed(), state_kept(session.running):
            for _ in range(self.passes):
                chosen = torch.randperm(fitting.n, generator=draw)[: self.batch_size].sort().values.tolist()
                (batch, *_) = session.data.part(chosen).rebatched(self.batch_size).batches
                drawn.append(_statistics(session, batch))

        def score(seen: PlainPass) -> Answer:
            with state_kept(seen.session.running):
                return several_forwards(seen, [_normalised(seen.session, one) for one in drawn], ROWS)

        return score


def norms(model: nn.Module) -> dict[str, Any]:
    """The batch normalisations that keep running statistics, by name."""
    named = model.named_modules()
    return {name: m for name, m in named if isinstance(m, _BatchNorm) and m.running_mean is not None}


_Statistics = dict[str, tuple[Tensor, Tensor]]  # name of a layer → mean and variance of its input


def _statistics(session: Session, batch: Batch) -> _Statistics:
    """Of every layer on a batch; each layer normalises by its own already, as it will later."""
    found: _Statistics = {}

    def watch(name: str) -> Callable[[Any, tuple[Tensor, ...]], None]:
        def measure(layer: Any, args: tuple[Tensor, ...]) -> None:
            over = [dim for dim in range(args[0].dim()) if dim != 1]
            found[name] = args[0].mean(over), args[0].var(over)
            _install(layer, found[name])

        return measure

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in norms(session.running).items()]
    try:
        session.plain(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _install(layer: Any, statistics: tuple[Tensor, Tensor]) -> None:
    layer.running_mean.copy_(statistics[0])
    layer.running_var.copy_(statistics[1])


def _normalised(session: Session, drawn: _Statistics) -> Callable[[Batch], Tensor]:
    def run(batch: Batch) -> Tensor:
        layers = norms(session.running)
        for name, statistics in drawn.items():
            _install(layers[name], statistics)
        return session.plain(batch)

    return run


# --- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Networks that were trained apart, or snapshots of one training (Lakshminarayanan et al. 2017).

    Attributes:
        members: Each a module, the name of a model (`file.py:callable`, `hf:CHECKPOINT`), or a file of weights (.pt,
            .safetensors) for a copy of the model. The model itself is a member only if it is named.
    """

    members: Sequence[nn.Module | str | Path]

    @property
    def forwards(self) -> int:
        """How often an example is run."""
        return len(self.members)

    def fit(self, fitting: PlainPass) -> Scorer:
        """Opens every member; nothing is fitted."""
        if not self.members:
            raise BadInput("an ensemble must have members", "checkpoints", [], "name two files or more")
        sessions = [_member_session(member, fitting.session) for member in self.members]

        def score(seen: PlainPass) -> Answer:
            opened = [session.with_data(seen.session.data) for session in sessions]
            return several_forwards(seen, [session.plain for session in opened], ROWS)

        return score


def _member_session(member: Any, session: Session) -> Session:
    if isinstance(member, nn.Module):
        network = member
    elif Path(member).suffix in _WEIGHTS:
        try:
            network = load_weights(copy.deepcopy(session.model), Path(member))
        except BadInput as error:
            what = error.what.replace("weights", "checkpoints", 1)
            raise BadInput(what, "checkpoints", error.received, error.remedy) from error
    else:
        network = load_model(str(member)).module
    opened = open_session(
        network, session.data, seed=session.seed, outputs=session.outputs, device=session.device,
        precision=session.precision, ignore_label=session.ignore_label,
    )  # fmt: skip
    if opened.classes != session.classes:
        received = Phrase(f"{opened.classes} classes of {member}")
        raise BadInput(f"checkpoints must predict {session.classes} classes", "checkpoints", received, "leave it out")
    return opened
