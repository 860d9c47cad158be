"""Comparisons: everything that one trained network offers without retraining, beside placements of dropout.

Owns the run. Whatever is fitted or chosen (temperatures, measures, exponents, covariances) comes from examples that
judge nothing: those of `fit`, or half of the data.
"""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from typing_extensions import Unpack

from dropscope.atomic import output_folder
from dropscope.deploy.rivals.preparation import REFERENCE, Asked, prepare
from dropscope.deploy.rivals.result import Comparison
from dropscope.deploy.rivals.runner import run
from dropscope.engine import SessionOptions, open_session
from dropscope.parameters import shares
from dropscope.progress import format_count, format_duration


@shares(open_session, without=("ignore_label",))
def compare(
    model: nn.Module,
    data: Any,
    rivals: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    fit: Any = None,
    shifted: Any = None,
    passes: int = 100,
    measure: str = "best",
    label: str = "mean",
    against: str = REFERENCE,
    engine: str = "auto",
    out: str | Path | None = None,
    progress: bool | None = None,
    **options: Unpack[SessionOptions],
) -> Comparison:
    """Compares placements of dropout with everything else that one trained network offers without retraining.

    All rivals rank the same examples. What is fitted or chosen comes from other examples: those of `fit`, or one half
    of the data (of the groups, where there are any), and then the other half judges.

    Args:
        model: A trained classifier. It is left exactly as it was.
        data: Labelled data, as `sweep` takes it.
        rivals: Name → a placement; the name of a rival (`rivals.TABLE`); stored probabilities `[M, N, C]`,
            as an array or as the name of a .npz, .npy, .safetensors or .parquet file; networks, or files of weights for
            copies of the model, as a list; or a function of your own (docs/extending.md). Or a sequence of these, in
            which "rivals" stands for every rival of the table that the model allows and "placements" for a handful of
            placements; None is both.
        fit: Labelled data to fit on, in the same form; None splits `data`.
        shifted: Labelled data of another kind, in the same form: every score again on them.
        passes: Passes of each placement.
        measure: What ranks the examples of rivals with several forwards: "best" (chosen on the fitting examples by
            AURC), or the name of one measure.
        label: Whether "mean" (each rival's own probabilities) or "plain" (the plain pass, for all) decides predictions.
        against: The row that the others are compared with.
        engine: "auto", "shared" (refuses a model it cannot capture), "loop" (the plain reference) or "analytic" (no
            passes: for placements just before the last linear layer).
        out: Folder for tables and figures; nothing is written without one.
        progress: True or False; None shows progress where it is read.

    Returns:
        A `Comparison`, which prints its table and its verdict.

    Raises:
        BadInput: For anything that cannot be used, before any work.
        AuditFailed: Where noise would not take effect as asked.

    Examples:
        >>> import torch
        >>> torch.manual_seed(0) and None
        >>> net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        >>> data = torch.randn(80, 4), torch.randint(0, 3, (80,))
        >>> result = compare(net, data, ["max_probability", "entropy", "last=0.5"], passes=5, progress=False)
        >>> sorted(result.table.name), result.judged_on
        (['entropy', 'last=0.5', 'max_probability'], 40)
    """
    started = time.monotonic()
    folder = None if out is None else output_folder(out)
    asked = Asked.checked(passes, measure, label, against, engine)
    field = prepare(model, data, rivals, fit, shifted, asked, options, show=progress)
    result = run(field, asked, started, show=progress)
    if folder is not None:
        result.save(folder)
    return result


@shares(compare, without=("out", "progress"))
def plan_comparison(
    model: nn.Module, data: Any, rivals: Mapping[str, Any] | Sequence[Any] | None = None, **options: Any
) -> ComparisonPlan:
    """What `compare` with these arguments would do, without running it.

    Args:
        model: A trained classifier. It is left exactly as it was.
        data: Labelled data, as `sweep` takes it.
        rivals: As of `compare`.

    Returns:
        A `ComparisonPlan`, which prints itself.

    Raises:
        BadInput: As `compare`.
    """
    defaults = {name: p.default for name, p in inspect.signature(compare).parameters.items()} | options
    asked = Asked.checked(*(defaults[name] for name in ("passes", "measure", "label", "against", "engine")))
    of_session = {name: options[name] for name in SessionOptions.__annotations__ if name in options}
    field = prepare(model, data, rivals, defaults["fit"], defaults["shifted"], asked, of_session, show=False)
    sizes = field.fitting.data.n, field.judging.data.n, 0 if field.shifted is None else field.shifted.data.n
    forwards = 1 + sum(entry.forwards(asked.passes) for entry in field.entries)
    seconds = field.seconds * forwards * sum(sizes)
    return ComparisonPlan(tuple((e.name, e.kind) for e in field.entries), asked.passes, *sizes, seconds, field.remarks)


@dataclass(frozen=True)
class ComparisonPlan:
    """What a comparison would do. Prints itself.

    Attributes:
        rivals: Name and kind of each row.
        passes: Passes of each placement.
        fitting: Examples that fit and choose.
        judging: Other examples, that judge.
        shifted: Examples of the shifted data.
        seconds: Expected for the forwards, at most: placements that share work take less.
        remarks: What is left out, and why.
    """

    rivals: tuple[tuple[str, str], ...]
    passes: int
    fitting: int
    judging: int
    shifted: int
    seconds: float
    remarks: tuple[str, ...]

    def __str__(self) -> str:
        kinds: dict[str, list[str]] = {}
        for name, kind in self.rivals:
            kinds.setdefault(kind, []).append(name)
        examples = self.fitting + self.judging + self.shifted
        count = examples * self.passes * len(kinds.get("dropout", []))
        sizes = f"fits on {self.fitting} examples, judges on {self.judging} others"
        sizes += f", and on {self.shifted} shifted ones" if self.shifted else ""
        said = [(kind, ", ".join(names)) for kind, names in kinds.items()]
        said += [("examples", sizes), ("passes", f"{self.passes} per placement: {format_count(count)} predictions")]
        said += [("expected", f"at most {format_duration(self.seconds)}, and some seconds to set up and to resample")]
        said += [("remark", remark) for remark in self.remarks]
        wide = max(len(head) for head, _ in said) + 2
        folded = (textwrap.wrap(text, 79 - wide, break_on_hyphens=False) for _, text in said)
        parts = zip((head for head, _ in said), folded, strict=True)
        return "\n".join(f"{head * (not n):<{wide}}{line}" for head, lines in parts for n, line in enumerate(lines))
