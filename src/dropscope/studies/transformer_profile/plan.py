"""What is asked of the study: presets, options and data, checked before any model is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dropscope.checks import check_choice, check_passes
from dropscope.errors import BadInput
from dropscope.studies.transformer_profile import items as items_module
from dropscope.studies.transformer_profile.checkpoints import CHECKPOINTS
from dropscope.studies.transformer_profile.configurations import MODES
from dropscope.studies.transformer_profile.evaluate import PRECISIONS
from dropscope.studies.transformer_profile.finetune import Tuning
from dropscope.studies.transformer_profile.items import Items
from dropscope.studies.transformer_profile.tokens import LONG_TEXTS

MASKS = ("per_example", "per_pass")
PROTOCOLS = ("once", "per_configuration", "none")


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


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that was asked for, checked; nothing of it has run."""

    models: tuple[str, ...]
    items: Items
    rates: str
    masks: str
    protocol: str
    passes: int
    sensitivity_passes: int
    tuning: Tuning
    seed: int
    long_texts: str
    precision: str = "auto"

    def precision_on(self, device: torch.device) -> str:
        """What the passes run in: `auto` is bf16 on a GPU, its difference to fp32 measured, and fp32 elsewhere."""
        return ("bf16" if device.type == "cuda" else "fp32") if self.precision == "auto" else self.precision

    @property
    def spec(self) -> dict[str, Any]:
        """What every part in a folder has in common."""
        return {
            "data": self.items.fingerprint, "classes": list(self.items.classes),
            "rates": self.rates, "masks": self.masks, "protocol": self.protocol,
            "passes": self.passes, "sensitivity_passes": self.sensitivity_passes,
            **asdict(self.tuning), "seed": self.seed, "long_texts": self.long_texts, "precision": self.precision,
        }  # fmt: skip


def prepare(
    models: Sequence[str] | None = None,
    *,
    squad: str | Path | None = None,
    hellaswag: str | Path | None = None,
    data: str | Path | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    preset: str = "paper",
    items: int | None = None,
    passes: int | None = None,
    learning_rate: float = 2e-5,
    rates: str = "config",
    masks: str = "per_example",
    train: str = "once",
    with_context: bool = True,
    long_texts: str = "skip",
    precision: str = "auto",
    seed: int = 42,
) -> Study:
    """Reads the data and checks every argument; no model is touched."""
    size = PRESETS[check_choice(preset, "--preset", PRESETS)]
    check_choice(rates, "--rates", MODES)
    check_choice(masks, "--masks", MASKS)
    check_choice(train, "--train", PROTOCOLS)
    check_choice(long_texts, "--long-texts", LONG_TEXTS)
    check_choice(precision, "--precision", ("auto", *PRECISIONS))
    if not isinstance(learning_rate, float) or not 0 < learning_rate < 1:
        raise BadInput("a learning rate lies between 0 and 1", "--learning-rate", learning_rate, "write 2e-5")
    names = tuple(str(Path(name).expanduser()) if name.startswith("~") else name for name in models or ())
    names = size.models if models is None else names
    if not names or any(not name.strip() for name in names) or len(set(names)) < len(names):
        raise BadInput(
            "models are named once each, by folder or Hub name", "--models", list(names), "write --models A,B"
        )
    if data is not None:
        _refuse("--data", {"--squad": squad, "--hellaswag": hellaswag, "--items": items})
        read = items_module.labelled(Path(data), text_column, label_column, group_column, seed, train != "none")
    else:
        columns = {"--text-column": text_column, "--label-column": label_column, "--group-column": group_column}
        _refuse("--squad and --hellaswag", columns)
        if squad is None or hellaswag is None:
            got = {"--squad": squad, "--hellaswag": hellaswag}
            raise BadInput("the study needs both domains, or a labelled file", "data", got,
                           "write --squad FILE --hellaswag FILE, or --data FILE")  # fmt: skip
        read = items_module.two_domains(
            Path(squad), Path(hellaswag), size.items if items is None else items, seed, with_context
        )
    tuning = Tuning(learning_rate, size.epochs)
    count = check_passes(size.passes if passes is None else passes)
    if count < 2:
        raise BadInput("a spread over passes needs two of them", "--passes", count, "write --passes 100")
    fewer = min(size.sensitivity_passes, count)
    return Study(names, read, rates, masks, train, count, fewer, tuning, seed, long_texts, precision)


def _refuse(given: str, others: Mapping[str, object]) -> None:
    for option, value in others.items():
        if value is not None:
            raise BadInput(f"{option} does not go with {given}", option, value, f"leave {option} out")
