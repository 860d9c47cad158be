"""What is asked of the study: the options as they are written, and the plan that they become once checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dropscope.checks import check_count, check_literals, check_passes, check_training_seed
from dropscope.errors import BadInput
from dropscope.studies.transformer_profile.presets import PRESETS
from dropscope.studies.transformer_profile.variants import Variant, list_variants

if TYPE_CHECKING:  # the command line reads the options without waiting for torch
    import torch

    from dropscope.studies.transformer_profile.configurations import Configuration
    from dropscope.studies.transformer_profile.fine_tuning import Tuning
    from dropscope.studies.transformer_profile.items import Items

_DOMAINS = ("squad", "hellaswag", "items")
_COLUMNS = ("text_column", "label_column", "group_column")


@dataclass(frozen=True)
class Options:
    """The options of the study.

    Attributes:
        models: Folders or Hub names, or file.py:callable that returns a model and its tokenizer; the preset's
            checkpoints if not given.
        squad: SQuAD's official JSON, the memory domain.
        hellaswag: HellaSwag's official JSON lines, the reasoning domain.
        data: A labelled .csv, .jsonl or .parquet instead of the two.
        text_column: Column of the texts in `data`; text if not given.
        label_column: Column of the labels in `data`; label if not given.
        group_column: Column of the groups in `data`; group, if there is one, if not given.
        preset: How much of the study is run: as in the paper, with small checkpoints, or to see that it runs.
        items: Items in all, a multiple of 20, a fifth of them to test on; the preset's if not given.
        passes: Passes per configuration; the preset's if not given.
        learning_rate: Of the fine-tuning.
        rates: What a rate reaches: the config fields of the family, or exactly each component.
        configurations: Pairs of rates beside the paper's five, ATTENTION/FFN; the paper recommends 0.2/0.2 at most.
        surface: Rates of a response surface: every attention rate with every FFN rate, 0 among them.
        masks: Masks of their own for every item, or one per pass.
        train: Train once, once per configuration, or not at all, for checkpoints that are trained already.
        seeds: Trainings of each model, with seeds `seed`, `seed` + 1, …
        layers: Depths: each checkpoint is cut to its first so many layers, then trained.
        scratch: Train from new weights; checkpoints give their config and tokenizer alone.
        context: Memory items show the start of their paragraph.
        long_texts: Texts longer than a model takes: left out with their context, or cut; counted.
        precision: Of the passes; auto is bf16 on a GPU, with its difference to fp32 measured.
        seed: Of items, training and noise.
        out: Folder of the results; a killed run continues there.
        device: cpu or cuda; the GPU where there is one if not given.
        preregister: File of a preregistration. A new one: claims, margins, seeds and options are written to it, and
            nothing is run. One that is there: the summary says whether the run is as registered.
        progress: Whether progress is shown; None decides by the terminal.
    """

    models: Sequence[str] | None = None
    squad: str | Path | None = None
    hellaswag: str | Path | None = None
    data: str | Path | None = None
    text_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    preset: Literal["paper", "small", "smoke"] = "paper"
    items: int | None = None
    passes: int | None = None
    learning_rate: float = 2e-5
    rates: Literal["config", "component"] = "config"
    configurations: Sequence[str] | None = None
    surface: Sequence[float] | None = None
    masks: Literal["per_example", "per_pass"] = "per_example"
    train: Literal["once", "per_configuration", "none"] = "once"
    seeds: int = 1
    layers: Sequence[int] | None = None
    scratch: bool = False
    context: bool = True
    long_texts: Literal["skip", "cut"] = "skip"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    seed: int = 42
    out: str | Path = "transformer-profile"
    device: str | None = None
    preregister: str | Path | None = None
    progress: bool | None = None

    def check(self) -> None:
        """Refuses values that cannot be used, and options that contradict each other; reads no file.

        Raises:
            BadInput: For the first of them.
        """
        check_literals(self)
        check_training_seed(self.seed)
        if not isinstance(self.learning_rate, float) or not 0 < self.learning_rate < 1:
            remedy = "write learning_rate=2e-5"
            raise BadInput("learning_rate must be between 0 and 1", "learning_rate", self.learning_rate, remedy)
        self._check_variants()
        names = self.model_names
        if not names or any(not name.strip() for name in names) or len(set(names)) < len(names):
            raise BadInput("models must name each folder or Hub checkpoint once", "models", list(names),
                           "write models=['A', 'B']")  # fmt: skip
        if self.data is not None:
            self._refuse(_DOMAINS, "data")
        else:
            self._refuse(_COLUMNS, "squad and hellaswag")
            absent = next((name for name in ("squad", "hellaswag") if getattr(self, name) is None), None)
            if absent is not None:
                what = f"{absent} must be given: the study needs both domains, or a labelled file"
                raise BadInput(what, absent, None, "write squad=FILE and hellaswag=FILE, or data=FILE")
        if self.passes is not None and check_passes(self.passes) < 2:
            remedy = "write passes=100"
            raise BadInput("passes must be at least 2, to have a spread over them", "passes", self.passes, remedy)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models that were asked for, or the preset's; a folder below ~ by its full path."""
        if self.models is None:
            return PRESETS[self.preset].models
        return tuple(str(Path(name).expanduser()) if name.startswith("~") else name for name in self.models)

    def _check_variants(self) -> None:
        check_count(self.seeds, "seeds", 3)
        for depth in self.layers or ():
            check_count(depth, "layers", 2)
        if self.train == "none":
            for name, given in (("seeds", self.seeds > 1), ("layers", bool(self.layers)), ("scratch", self.scratch)):
                if given:
                    what = f"{name} must be left out with train='none', which trains nothing"
                    raise BadInput(what, name, getattr(self, name), f"leave {name} out, or write train='once'")
        if self.surface and self.train == "per_configuration":
            what = (
                "surface must be left out with train='per_configuration', whose networks serve one pair of rates each"
            )
            raise BadInput(what, "surface", list(self.surface), "leave surface out, or write train='once'")

    def _refuse(self, names: Sequence[str], given: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None:
                raise BadInput(f"{name} must be left out with {given}", name, value, f"leave {name} out")


@dataclass(frozen=True, eq=False)
class Plan:
    """The options, checked, with the preset's sizes and the items read. No model is loaded yet."""

    options: Options
    models: tuple[str, ...]
    items: Items
    passes: int
    sensitivity_passes: int
    tuning: Tuning
    device: torch.device
    configurations: tuple[Configuration, ...]
    surface: tuple[Configuration, ...] = ()

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The networks of the run: each model at each depth with each training seed."""
        o = self.options
        return list_variants(self.models, o.layers, range(o.seed, o.seed + o.seeds), scratch=o.scratch)

    @property
    def folder(self) -> Path:
        return Path(self.options.out)

    @property
    def precision(self) -> str:
        """What the passes run in: `auto` is bf16 on a GPU, its difference to fp32 measured, and fp32 elsewhere."""
        asked = self.options.precision
        return ("bf16" if self.device.type == "cuda" else "fp32") if asked == "auto" else asked

    @property
    def spec(self) -> dict[str, Any]:
        """What every part in a folder has in common."""
        options = self.options
        return {
            "data": self.items.fingerprint, "classes": list(self.items.classes),
            "rates": options.rates, "masks": options.masks, "protocol": options.train,
            "passes": self.passes, "sensitivity_passes": self.sensitivity_passes,
            **asdict(self.tuning), "seed": options.seed, "long_texts": options.long_texts,
            "precision": options.precision,
        }  # fmt: skip
