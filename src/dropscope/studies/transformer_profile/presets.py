"""Sizes of the study: the paper's own, one for small checkpoints, and one that only shows that everything runs."""

from __future__ import annotations

from dataclasses import dataclass

from dropscope.studies.transformer_profile.published import CHECKPOINTS


@dataclass(frozen=True)
class Preset:
    """How much of the study is run. `paper` is the paper's own size, with a sensitivity map that it does not have."""

    items: int
    passes: int
    epochs: int
    sensitivity_passes: int
    models: tuple[str, ...]


_ALL = tuple(checkpoint.name for checkpoint in CHECKPOINTS)
_SMALL = tuple(checkpoint.name for checkpoint in CHECKPOINTS if checkpoint.millions < 70)
PRESETS = {
    "paper": Preset(1000, 100, 5, 30, _ALL),
    "small": Preset(1000, 20, 5, 10, _SMALL),
    "smoke": Preset(80, 5, 1, 2, ("prajjwal1/bert-tiny", "sshleifer/tiny-gpt2")),
}
