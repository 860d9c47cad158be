"""Sizes of windows: which of them a network takes, and whether windows change what it predicts.

A U-Net with four strides of 2 takes sides that 16 divides. Which multiples a network needs is found by trying it, on
windows of the first volume. See `windows` for how volumes are padded to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from dropscope.engine import Session, open_session, sealed
from dropscope.errors import BadInput, DropscopeError, Phrase, first_line
from dropscope.model import Outputs, device_of, evaluating, probabilities, random_state_kept, state_kept, unwrap
from dropscope.volumes.labels import structure_text
from dropscope.volumes.nifti import VolumeCase
from dropscope.volumes.options import Options
from dropscope.volumes.windows import Windows, cut_out, pad, plain_labels, plan_windows

_AUDITED = 2  # windows: an audit runs every site by itself
_LADDER = (1, 2, 4, 8, 16, 32, 64)
_COMPARED_VOXELS = 1 << 22  # 160³: a volume that a network is likely to take at once
_TOLERATED = 0.05  # of a structure's volume
_FEWEST = 20  # voxels: below, a few of them are many per cent
_REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)  # of a network, on a size


def is_flat(model: nn.Module) -> bool:
    """Whether the network is 2-D, by its first convolution."""
    return isinstance(_first_convolution(model), nn.Conv2d)


def fit_session(
    model: nn.Module, case: VolumeCase, image: Tensor, asked: dict[str, Windows], options: Options
) -> tuple[Session, tuple[int, ...]]:
    """The model on its device, called on the first windows of the first volume; and multiples for windows' sides."""
    windows = asked[case.name]
    multiples = (1,) * (2 if windows.flat else 3)
    try:
        session = _session(model, image, windows, options)
        if len({each.size for each in asked.values()}) == 1:
            return session, multiples
        refusal: Exception | None = None
    except (BadInput, _WrongSize) as error:
        if isinstance(error, BadInput) and (error.name != "data" or error.__cause__ is None):
            raise
        refusal = error
    found = _find_multiples(model, image, windows, options.outputs)
    if found is None and isinstance(refusal, _WrongSize):
        received = Phrase(str(refusal))
        remedy = "pass a segmentation network, or choose sides that it takes with roi=(128, 128, 16)"
        raise BadInput("model must predict every voxel of its window", "model", received, remedy)
    if found is None and refusal is not None:
        raise _unfit_window(model, case, len(image), windows, refusal.__cause__ or refusal) from refusal
    if refusal is None and (found is None or max(found) == 1):
        return session, multiples
    assert found is not None
    padded = plan_windows(windows.shape, windows.size[:2] if windows.flat else windows.size, windows.overlap, found)
    return _session(model, image, padded, options), found


class _WrongSize(Exception):
    """A network that returns other voxels than it is given."""


def _session(model: nn.Module, image: Tensor, windows: Windows, options: Options) -> Session:
    padded = pad(image, windows)
    first = torch.stack([cut_out(padded, windows, origin) for origin in windows.origins()[:_AUDITED]])
    session = open_session(
        model, first, seed=options.seed, masks=options.masks, draws=options.draws, outputs=options.outputs,
        device=options.device, batch_size=_AUDITED,
    )  # fmt: skip
    with torch.no_grad():
        probabilities = session.plain(session.data.batches[0])
    if probabilities.shape[2:] != first.shape[2:]:
        raise _WrongSize(f"{tuple(probabilities.shape[2:])} for windows of {tuple(first.shape[2:])}")
    return session


def _find_multiples(model: nn.Module, image: Tensor, windows: Windows, outputs: Outputs) -> tuple[int, ...] | None:
    """For each axis the multiple that the network's windows must have; None where no size will do.

    Sides of odd multiples are tried: those of 16·3 are taken where multiples of 16 are, and refused where 32 is needed.

    Args:
        model: The network, on any device.
        image: The first volume, `[channels, *shape]`.
        windows: The windows that were asked for.
        outputs: What the model returns.
    """
    seen = windows.size[:2] if windows.flat else windows.size

    def takes(multiples: Sequence[int]) -> bool:
        sides = tuple(_odd_multiple(side, of) for side, of in zip(seen, multiples, strict=True))
        return _takes(unwrap(model), image, plan_windows(windows.shape, sides, windows.overlap), outputs)

    enough = next((number for number in _LADDER if takes([number] * len(seen))), None)
    if enough is None:
        return None
    multiples = [enough] * len(seen)
    for axis in range(len(seen)):  # a network may pool along some axes only
        while multiples[axis] > 1 and takes([*multiples[:axis], multiples[axis] // 2, *multiples[axis + 1 :]]):
            multiples[axis] //= 2
    return tuple(multiples)


def _unfit_window(
    model: nn.Module, case: VolumeCase, channels: int, windows: Windows, error: BaseException
) -> BadInput:
    """The error of a network that takes no window: because of its channels, its dimensions or the window's sides."""
    first = _first_convolution(model)
    if first is not None and first.in_channels != channels:
        what = f"{case.place} must have the {first.in_channels} channels that the network takes"
        remedy = f"name {first.in_channels} files of one channel as a.nii.gz,b.nii.gz, or a 4-D file"
        return BadInput(what, case.place, Phrase(f"{channels} channels"), remedy)
    what = f"model must take windows of {_by(windows.size)} voxels of {case.place}, or of sides rounded up"
    remedy = "choose sides that its poolings divide: write roi=(128, 128, 16), or roi=(128, 128) if it is 2-D"
    return BadInput(what, "roi", Phrase(first_line(error)), remedy)


def padding_remark(windows: dict[str, Windows], asked: Sequence[int] | None, multiples: Sequence[int]) -> str | None:
    """What rounding up does to the volumes, in one line; None where nothing changes."""
    padded = [name for name, each in windows.items() if each.padded != each.shape]
    if all(multiple == 1 for multiple in multiples):
        return None
    rounded = asked is not None and any(side % of for side, of in zip(asked, multiples, strict=False))
    if not padded and not rounded:
        return None
    first = windows[padded[0]] if padded else next(iter(windows.values()))
    parts = []
    if rounded:
        parts.append(f"windows of {_by(asked or ())} became {_by(first.size[:2] if first.flat else first.size)}")
    if padded:
        change = f"{_by(first.shape)} to {_by(first.padded)}"
        parts.append(f"{len(padded)} of {len(windows)} volumes are padded with zeros ({change}), maps cropped back")
    needed = _by(multiples) if len(set(multiples)) > 1 else str(multiples[0])
    return f"the network takes sides that are multiples of {needed}: {'; '.join(parts)}"


def windows_remark(
    session: Session, case: VolumeCase, image: Tensor, windows: Windows, names: Sequence[str]
) -> str | None:
    """Whether windows change the volumes of structures in one plain pass over one case, in one line.

    A network that was trained on whole volumes reads the border of a window as the border of the body, and the other
    way round; which is right only its training can say. None where windows change little, where there is one window
    only, or where the whole volume is too large to be tried at once.
    """
    whole = plan_windows(windows.shape, None, 0.0)
    if windows.flat or len(windows.origins()) == 1 or math.prod(whole.size) > _COMPARED_VOXELS:
        return None
    try:
        multiples = _find_multiples(session.model, image, whole, session.outputs)
        whole = plan_windows(windows.shape, None, 0.0, multiples or (1, 1, 1))
        counts = [_count(plain_labels(session, image, each), session.classes) for each in (windows, whole)]
    except _REFUSALS:
        return None  # too large after all, for this network
    changes = {
        name: (in_windows - at_once) / max(at_once, 1)
        for name, in_windows, at_once in zip(names, counts[0][1:], counts[1][1:], strict=True)
        if max(in_windows, at_once) >= _FEWEST
    }
    worst = max(changes, key=lambda name: abs(changes[name]), default=None)
    if worst is None or abs(changes[worst]) <= _TOLERATED:
        return None
    change = f"{abs(changes[worst]):.0%} {'larger' if changes[worst] > 0 else 'smaller'}"
    return (
        f"windows of {_by(windows.size)} change volumes: {structure_text(worst)} of {case.name} is {change} than "
        "in the whole volume at once; use the windows that the network was trained on"
    )


def _count(labels: Tensor, classes: int) -> list[int]:
    return torch.bincount(labels.flatten(), minlength=classes).tolist()


def _takes(model: nn.Module, image: Tensor, windows: Windows, outputs: Outputs) -> bool:
    """Whether the network predicts every voxel of such a window, in one plain forward."""
    window = cut_out(pad(image, windows), windows, windows.origins()[0])[None].to(device_of(model))
    try:
        with torch.no_grad(), sealed(), random_state_kept(), state_kept(model), evaluating(model):
            found = probabilities(model(window), outputs, check=False)
    except (torch.OutOfMemoryError, DropscopeError):
        raise
    except _REFUSALS:
        return False
    return found.shape[2:] == window.shape[2:]


def _odd_multiple(side: int, of: int) -> int:
    """The least odd multiple of a number that is not below `side`.

    >>> _odd_multiple(35, 16), _odd_multiple(51, 16), _odd_multiple(9, 1)
    (48, 80, 9)
    """
    times = math.ceil(side / of)
    return of * (times + 1 - times % 2)


def _first_convolution(model: nn.Module) -> nn.Conv1d | nn.Conv2d | nn.Conv3d | None:
    return next((m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)


def _by(sides: Iterable[int]) -> str:
    return "×".join(map(str, sides))
