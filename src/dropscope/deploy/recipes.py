"""Recipes: how an example becomes an answer. One recipe and one model give an example the same answer always.

Owns the run of the passes and what it keeps of every example. See `calibration` for what answers mean, `predictor` for
what a user holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dropscope.checks import check_choice, check_passes
from dropscope.data import Data
from dropscope.engine import AnalyticEngine, Engine, Session, StatisticsBlock, Tick, choose_engine, open_session
from dropscope.errors import BadInput, Phrase
from dropscope.injection import ResolvedPlacement
from dropscope.measures import PLAIN_TABLE, TABLE, Measure, resolve
from dropscope.model import Outputs
from dropscope.placement import as_placement
from dropscope.progress import track

LABELS = ("plain", "mean")
ENGINES = ("auto", "analytic")
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
        engine: "auto" runs passes; "analytic" needs none, for noise just before the last layer.
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
    engine: str = "auto"

    @classmethod
    def of(cls, placement: Any, measure: str | None, passes: int, label: str, **options: Any) -> Recipe:
        """A recipe that is checked as far as that needs no model."""
        check_choice(label, "label", LABELS)
        check_passes(passes)
        check_choice(options.get("engine", "auto"), "engine", ENGINES)
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
        how = f"{self.passes} passes" if self.engine == "auto" else "without passes"
        return f"{self.placement}, {self.measure}, {how}"


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


@dataclass(frozen=True, eq=False)
class Prepared:
    """A recipe on a model: traced, checked, ready for data like that which it was prepared on.

    Attributes:
        recipe: How an example becomes an answer.
        session: The model, and the data that it was prepared on.
        resolved: The recipe's placement on the model.
        engine: What needs no passes, where the recipe asks for it; None elsewhere.
        votes: Whether to say how far passes disagree.
    """

    recipe: Recipe
    session: Session
    resolved: ResolvedPlacement
    engine: AnalyticEngine | None
    votes: bool = True

    @property
    def draws(self) -> bool:
        """Whether noise is drawn, so that examples need their keys."""
        return not self.recipe.is_plain and self.engine is None

    def answers(self, data: Data | None = None, *, show: bool | None = False) -> Answers:
        """The answers to some data; to that which it was prepared on, if None."""
        asked = self.session if data is None else self.session.with_data(data)
        (row,) = resolve([self.recipe.measure])
        parts: list[list[Tensor]] = []
        with track("predicting", asked.data.n * self.recipe.passes, show=show) as tick:
            if self.recipe.is_plain:
                ran = asked
                parts += (_plain_part(row, plain) for plain in _plain_passes(asked, tick))
            else:
                engine = self._engine(asked)
                ran, needs = engine.session, {"sum_p", *row.needs} | ({"votes"} if self.votes else set())
                parts += (self._part(row, block) for block in engine.statistics(0, needs, tick))
        return _ordered(asked, ran, [torch.cat(column).numpy() for column in zip(*parts, strict=True)])

    def _engine(self, asked: Session) -> Engine:
        if self.engine is not None:
            return self.engine.on(asked.data)
        return choose_engine(asked, [self.resolved], self.recipe.passes)

    def _part(self, row: Measure, block: StatisticsBlock) -> list[Tensor]:
        statistics, plain = block.chunks[0][1], block.plain
        chosen = plain if self.recipe.label == "plain" else statistics.mean[0]
        predicted = chosen.argmax(-1)
        value = row(plain) if row.of == "plain" else row(statistics)[0]
        apart = torch.full(predicted.shape, float("nan"))
        if self.votes:
            votes = statistics.read("votes")[0].float()
            apart = 1 - votes.gather(-1, predicted.unsqueeze(-1))[..., 0] / statistics.passes
        return [predicted.cpu(), chosen.float().cpu(), value.double().cpu(), apart.float().cpu()]


def open_recipe(
    model: nn.Module, recipe: Recipe, data: Any, *, audited: bool = False, votes: bool = True, **options: Any
) -> Prepared:
    """Prepares a recipe on a model and data of any kind.

    Args:
        model: The model.
        recipe: How.
        data: Anything `uncertainty` takes.
        audited: Whether the placement is known to take effect, and its engine to be exact enough.
        votes: Whether to say how far passes disagree.
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
        what, remedy = "model must predict one class per example", "use VolumePredictor, or defer with scores per case"
        raise BadInput(what, "model", Phrase("predictions per pixel, voxel or label"), remedy)
    (resolved,) = session.resolve([recipe.placement])
    if resolved and not audited:
        session.audit(resolved, recipe.placement)
    engine = None
    if recipe.engine == "analytic" and not recipe.is_plain:
        if not audited:
            choose_engine(session, [resolved], recipe.passes, "analytic", fixed=True)  # refuses where it is not exact
        engine = AnalyticEngine.build(session, [resolved], recipe.passes)
    return Prepared(recipe, session, resolved, engine, votes)


def answer(
    model: nn.Module,
    recipe: Recipe,
    data: Any,
    *,
    audited: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> Answers:
    """Runs a recipe on data of any kind; arguments are those of `open_recipe`."""
    return open_recipe(model, recipe, data, audited=audited, **options).answers(show=progress)


def _plain_passes(session: Session, tick: Tick) -> Iterator[Tensor]:
    for batch in session.data.batches:
        with torch.no_grad(), session.sealed():
            plain = session.plain(batch)
        tick(batch.n)
        yield plain


def _plain_part(row: Measure, plain: Tensor) -> list[Tensor]:
    predicted = plain.argmax(-1)
    nothing = torch.full(predicted.shape, float("nan"))
    return [predicted.cpu(), plain.float().cpu(), row(plain).double().cpu(), nothing]


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
