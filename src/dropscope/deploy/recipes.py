"""Recipes: how an example becomes an answer. One recipe and one model give an example the same answer always.

Owns the run of the passes and what it keeps of every example. See `calibration` for what answers mean, `predictor` for
what a user holds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dropscope.checks import check_choice, check_passes
from dropscope.engine import Session, choose_engine, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.measures import PLAIN_TABLE, TABLE, Measure, resolve
from dropscope.model import Outputs
from dropscope.placement import as_placement
from dropscope.progress import track

LABELS = ("plain", "mean")
PLAIN = "none"  # the placement without noise


@dataclass(frozen=True)
class Recipe:
    """How an example becomes an answer.

    Attributes:
        placement: Where noise goes; "none" for one plain pass.
        measure: What its uncertainty is.
        passes: Passes per example: 1 for a plain pass.
        label: Whether the "plain" pass or the "mean" of the passes decides class and probabilities.
        seed: Seed of the noise.
        masks: "per_example" or "per_pass".
        draws: "independent" or "stratified".
        outputs: What the model returns.
        precision: "fp32", "tf32" or "bf16".
    """

    placement: str
    measure: str
    passes: int
    label: str = "plain"
    seed: int = 0
    masks: str = "per_example"
    draws: str = "independent"
    outputs: Outputs = "logits"
    precision: str = "fp32"

    @classmethod
    def of(cls, placement: Any, measure: str | None, passes: int, label: str, **options: Any) -> Recipe:
        """A recipe that is checked as far as that needs no model."""
        check_choice(label, "label", LABELS)
        check_passes(passes)
        parsed = as_placement(PLAIN if placement is None else placement)
        name = measure or ("plain_max_probability" if parsed.is_none else "predictive_entropy")
        check_choice(name, "measure", [*TABLE, *PLAIN_TABLE])  # a function of the user's could not be stored
        (row,) = resolve([name])
        if parsed.is_none and row.of != "plain":
            what = "measure must be of the plain pass where there is no noise"
            raise BadInput(what, "measure", row.name, "write measure='plain_entropy', or give a placement")
        return cls(str(parsed), row.name, 1 if parsed.is_none else passes, label, **options)

    @property
    def is_plain(self) -> bool:
        return self.placement == PLAIN

    def facts(self) -> dict[str, Any]:
        """The recipe in values that JSON can hold.

        Raises:
            BadInput: If it holds a function.
        """
        if callable(self.outputs):
            what = "outputs must be named, as a predictor's folder holds no code"
            raise BadInput(
                what, "outputs", Phrase("a function"), "put it into the model, and write outputs='probabilities'"
            )
        return asdict(self)

    def __str__(self) -> str:
        if self.is_plain:
            return f"one plain pass, {self.measure}"
        return f"{self.placement}, {self.measure}, {self.passes} passes"


@dataclass(frozen=True, eq=False)
class Answers:
    """What a recipe gives for some examples, in the order of the data.

    Attributes:
        ids: What the user calls each.
        labels: True classes, or None.
        groups: The group of each, or None.
        predictions: Predicted classes.
        probabilities: `[n, classes]`, of the plain pass or the mean of the passes, as the recipe says.
        uncertainty: The measure.
        disagreement: Share of the passes that predict another class; NaN for a plain pass.
        class_names: In the order of the classes, or None.
        repeated: How many of them are inputs that occur earlier, too.
    """

    ids: list[Any]
    labels: NDArray[np.int64] | None
    groups: list[Hashable] | None
    predictions: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    uncertainty: NDArray[np.float64]
    disagreement: NDArray[np.float32]
    class_names: tuple[str, ...] | None
    repeated: int = 0

    @property
    def n(self) -> int:
        return len(self.uncertainty)


def answer(
    model: nn.Module,
    recipe: Recipe,
    data: Any,
    *,
    audited: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Answers:
    """Runs a recipe on data of any kind.

    Args:
        model: The model.
        recipe: How.
        data: Anything `uncertainty` takes.
        audited: Whether the placement is known to take effect.
        progress: True or False; None shows progress where it is read.
        **options: Others that `open_session` takes.

    Raises:
        BadInput: For anything that cannot be used, before any pass.
        AuditFailed: Where the noise would not take effect as asked.
    """
    session = open_session(
        model, data, seed=recipe.seed, masks=recipe.masks, draws=recipe.draws, outputs=recipe.outputs,
        precision=recipe.precision, **options,
    )  # fmt: skip
    if session.dense:
        what, remedy = "model must predict one class per example", "write a rule with defer, from scores per case"
        raise BadInput(what, "model", Phrase("predictions per pixel, voxel or label"), remedy)
    (resolved,) = session.resolve([recipe.placement])
    if resolved and not audited:
        session.audit(resolved, recipe.placement)
    (row,) = resolve([recipe.measure])
    return _ordered(session, *_run(session, resolved, recipe, row, show=progress))


def _run(session: Session, resolved: Any, recipe: Recipe, row: Measure, *, show: bool | None) -> tuple[Any, list[Any]]:
    """The session whose order counts, and what is kept of every block."""
    engine = choose_engine(session, [resolved], recipe.passes)
    needs = {"sum_p", *row.needs} | (set() if recipe.is_plain else {"votes"})
    parts = []
    with track("predicting", session.data.n * engine.passes, show=show) as tick:
        for block in engine.statistics(0, needs, tick):
            statistics, plain = block.chunks[0][1], block.plain
            chosen = plain if recipe.label == "plain" else statistics.mean[0]
            predicted = chosen.argmax(-1)
            value = row(plain) if row.of == "plain" else row(statistics)[0]
            if recipe.is_plain:
                apart = torch.full(predicted.shape, float("nan"))
            else:
                votes = statistics.read("votes")[0].float()
                apart = 1 - votes.gather(-1, predicted.unsqueeze(-1))[..., 0] / statistics.passes
            parts.append([predicted.cpu(), chosen.float().cpu(), value.double().cpu(), apart.float().cpu()])
    return engine.session, [torch.cat(column).numpy() for column in zip(*parts, strict=True)]


def _ordered(asked: Session, ran: Session, columns: list[Any]) -> Answers:
    """Examples in the order of the data, however they were batched."""
    if ran.data.order is not None:
        back = np.argsort(ran.data.order.numpy())
        columns = [column[back] for column in columns]
    data = asked.data
    labels = None if data.labels is None else data.labels.numpy()
    predicted, chosen, value, apart = columns
    repeated = data.n - len(data.keys.unique())
    return Answers(data.ids, labels, data.groups, predicted, chosen, value, apart, asked.class_names, repeated)


def with_labels(answers: Answers, name: str) -> NDArray[np.int64]:
    """The labels; `name` is the argument that must have them.

    Raises:
        BadInput: If there are none.
    """
    if answers.labels is None:
        remedy = "pass (inputs, labels), or data with labels"
        raise BadInput(f"{name} must have labels", name, Phrase("inputs without labels"), remedy)
    return answers.labels
