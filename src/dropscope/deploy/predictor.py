"""The predictor to ship: class, probabilities, uncertainty, P(error) and whether to defer, for every example.

Owns what a user calls. See `recipes` for how passes run, `calibration` for what they mean, `folders` for how a
predictor is kept, `drift`, `monitors` and `evaluation` for what it says about data.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dropscope.analysis import group_numbers
from dropscope.deploy import folders
from dropscope.deploy.calibration import Calibration
from dropscope.deploy.deferral import check_asked, defer
from dropscope.deploy.drift import DriftCheck, Seen, check_drift, frequent_classes
from dropscope.deploy.evaluation import By, Evaluation, evaluate_answers
from dropscope.deploy.explanations import Explanation, explain_prediction
from dropscope.deploy.exports import export_recipe
from dropscope.deploy.formats import Exported
from dropscope.deploy.monitors import Monitor, monitor_of
from dropscope.deploy.predictions import Predictions
from dropscope.deploy.recipes import Answers, Recipe, answer, with_labels
from dropscope.deploy.rules import DeferralRule
from dropscope.display import headed
from dropscope.errors import BadInput, Phrase
from dropscope.model import Outputs, unwrap, weights_fingerprint
from dropscope.placement import Placement

_NEAR = 50  # calibration examples that explain one


@dataclass(frozen=True, eq=False)
class UncertaintyPredictor:
    """A model with its recipe, its calibration and its rule: one object for production. Threads may share it.

    `UncertaintyPredictor.fit` makes one from labelled data, `load` reads one. Noise is a function of the example, so
    that an example gets the same answer every time, in any batch.

    Attributes:
        model: The model. It is left exactly as it was.
        recipe: Where noise goes, which measure, how many passes.
        calibration: What is known from labelled examples.
        rule: When to defer; None where nothing was asked.
        class_names: In the order of the model's outputs, or None.
        tokenizer: For texts, or None.
        device: Where to run; where the model is, if None.

    Examples:
        >>> torch.manual_seed(0).initial_seed()
        0
        >>> net = nn.Linear(4, 3)
        >>> x, y = torch.randn(300, 4), torch.randint(0, 3, (300,))
        >>> predictor = UncertaintyPredictor.fit(net, (x, y), max_error=0.5)
        >>> found = predictor(x[:5])
        >>> found.labels.shape, found.probabilities.shape, found.defer.dtype
        ((5,), (5, 3), dtype('bool'))
    """

    model: nn.Module
    recipe: Recipe
    calibration: Calibration
    rule: DeferralRule | None = None
    class_names: tuple[str, ...] | None = None
    tokenizer: Any = None
    device: str | torch.device | None = None

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        data: Any,
        placement: Placement | str | Mapping[str, float] | None = None,
        passes: int = 100,
        *,
        measure: str | None = None,
        max_error: float | None = 0.05,
        confidence: float = 0.9,
        label: str = "plain",
        groups: Sequence[Hashable] | str | None = None,
        rule: Mapping[str, Any] | None = None,
        seed: int = 0,
        masks: str = "per_example",
        draws: str = "independent",
        outputs: Outputs = "logits",
        precision: str = "fp32",
        engine: str = "auto",
        device: str | torch.device | None = None,
        tokenizer: Any = None,
        class_names: Sequence[str] | str | None = None,
        batch_size: int = 256,
        progress: bool | None = None,
    ) -> UncertaintyPredictor:
        """Calibrates a predictor on labelled data that neither trained the model nor chose the placement.

        Args:
            model: A trained classifier. It is left exactly as it was.
            data: Labelled data, as `uncertainty` takes it.
            placement: Where noise goes, such as "own" or "last=0.5"; None for one plain pass.
            passes: How many stochastic forwards per example.
            measure: A measure by name; None takes "predictive_entropy", or "plain_max_probability" for a plain pass.
            max_error: What the error among the kept may be at most; None makes no rule.
            confidence: Probability with which that holds.
            label: Whether the "plain" pass or the "mean" of the passes decides class and probabilities.
            groups: What is independent, where examples are not: one per example, or a field of dicts.
            rule: More arguments of `defer`, such as {"budget": 0.2} or {"method": "sgr"}.
            seed: Seed of the noise.
            masks: "per_example" or "per_pass".
            draws: "independent" or "stratified".
            outputs: What the model returns.
            precision: "fp32", "tf32" or "bf16".
            engine: "auto" runs passes. "analytic" needs none, where noise enters just before the last layer: about the
                cost of a plain pass.
            device: Where to run; where the model is, if None.
            tokenizer: For texts: the tokenizer, or the name of its checkpoint.
            class_names: In the order of the model's outputs.
            batch_size: Examples per batch, for data that is not in batches yet.
            progress: True or False; None shows progress where it is read.

        Returns:
            The predictor. Where nothing can be promised its rule defers everything, and says why.

        Raises:
            BadInput: For anything that cannot be used.
            AuditFailed: Where the noise would not take effect as asked.
        """
        recipe = Recipe.of(placement, measure, passes, label, seed=seed, masks=masks, draws=draws, outputs=outputs,
                           precision=precision, engine=engine)  # fmt: skip
        check_asked(max_error, confidence, rule)
        found = answer(model, recipe, data, groups=groups, device=device, tokenizer=tokenizer, class_names=class_names,
                       batch_size=batch_size, progress=progress)  # fmt: skip
        return cls.of_answers(model, recipe, found, max_error, confidence, rule, tokenizer=tokenizer, device=device)

    @classmethod
    def of_answers(
        cls,
        model: nn.Module,
        recipe: Recipe,
        found: Answers,
        max_error: float | None,
        confidence: float,
        rule: Mapping[str, Any] | None,
        **options: Any,
    ) -> UncertaintyPredictor:
        """A predictor from labelled answers of its recipe."""
        unit = np.arange(found.n) if found.groups is None else group_numbers(found.groups)
        calibration = Calibration.of(found, unit)
        asked = {"max_error": max_error, **(rule or {})}
        made = None
        if any(value is not None for value in asked.values()):
            made = defer(
                {recipe.measure: calibration.uncertainty}, calibration.right, confidence=confidence,
                groups=found.groups, labels=calibration.labels.tolist(), predictions=calibration.predictions.tolist(),
                **asked,
            )  # fmt: skip
            if found.repeated and found.groups is None:
                said = (
                    f"{found.repeated:,} of the {found.n:,} examples are repeated inputs: they are no further evidence"
                )
                made = replace(made, remarks=(*made.remarks, said))
        return cls(unwrap(model), recipe, calibration, made, found.class_names, **options)

    # --- examples -----------------------------------------------------------------------------------------------------

    def __call__(self, inputs: Any, *, batch_size: int = 256, progress: bool | None = False) -> Predictions:
        """What to say about new examples.

        Args:
            inputs: Inputs of any kind that `uncertainty` takes: a tensor, a dict, a Dataset, texts, a table, images.
            batch_size: Examples per batch.
            progress: True or False; None shows progress where it is read.

        Returns:
            `Predictions`, in the order of the inputs.

        Raises:
            BadInput: For inputs that cannot be used.
        """
        return self.said(self._answers(inputs, batch_size=batch_size, progress=progress))

    def explain(self, example: Any, count: int = _NEAR) -> Explanation:
        """What became of calibration examples as uncertain as this one.

        Args:
            example: One example, as a batch of one.
            count: How many of the nearest to look at.

        Returns:
            An `Explanation`: these examples, and how many of them were wrong.

        Raises:
            BadInput: For more or fewer than one example.
        """
        said = self(example)
        if len(said) != 1:
            raise BadInput("example must be one example", "example", Phrase(f"{len(said)}"), "pass a batch of one")
        return explain_prediction(said, self.calibration, count)

    # --- data ---------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        test: Any,
        *,
        groups: Sequence[Hashable] | str | None = None,
        by: By = None,
        batch_size: int = 256,
        progress: bool | None = None,
    ) -> Evaluation:
        """Risk, coverage, sensitivity and specificity on labelled data that did not calibrate.

        Args:
            test: Labelled data.
            groups: What is independent, where examples are not.
            by: Subgroups to give on their own: one name per example, or {what: one name per example}.
            batch_size: Examples per batch.
            progress: True or False; None shows progress where it is read.

        Returns:
            An `Evaluation`, with intervals.

        Raises:
            BadInput: For data without labels, or subgroups that do not fit.
        """
        found = self._answers(test, groups=groups, batch_size=batch_size, progress=progress)
        labels, said = with_labels(found, "test"), self.said(found)
        unit = None if found.groups is None else group_numbers(found.groups)
        promised = None if self.rule is None or not self.rule.found else self.rule.max_error
        return evaluate_answers(labels, said.labels, said.defer, unit=unit, by=by, class_names=self.class_names,
                                max_error=promised)  # fmt: skip

    def check(
        self,
        inputs: Any,
        *,
        alpha: float = 0.05,
        groups: Sequence[Hashable] | str | None = None,
        batch_size: int = 256,
        progress: bool | None = None,
    ) -> DriftCheck:
        """Whether recent inputs still look like the calibration, without labels.

        Args:
            inputs: Recent inputs, twenty or more.
            alpha: How often there may be a false alarm where nothing changed.
            groups: What is independent, where examples are not: one of each group is compared.
            batch_size: Examples per batch.
            progress: True or False; None shows progress where it is read.

        Returns:
            A `DriftCheck`, with an estimate of the accuracy.

        Raises:
            BadInput: For inputs that cannot be used, or too few.
        """
        found = self._answers(inputs, groups=groups, batch_size=batch_size, progress=progress)
        said, known = self.said(found), self.calibration
        away = None if self.rule is None else self.rule(known.uncertainty, known.predictions.tolist())
        looks = frequent_classes(known.predictions, known.probabilities)
        before = Seen(known.uncertainty, known.probabilities[:, looks], known.disagreement, away, known.unit)
        unit = None if found.groups is None else group_numbers(found.groups)
        now = Seen(said.uncertainty, said.probabilities[:, looks], said.disagreement,
                   None if away is None else said.defer, unit)  # fmt: skip
        return check_drift(before, now, alpha, curve=known.curve, accuracy=float(known.right.mean()))

    def monitor(self, alpha: float = 0.05, largest: int | None = None) -> Monitor:
        """A monitor of labels as they come: whether the error among the kept is still what was promised.

        Args:
            alpha: How often there may ever be a false alarm, however often one looks.
            largest: Examples of one group, at most, where they come in groups; None takes that of the calibration.

        Returns:
            A `Monitor`; `monitor.update(predictions.labels == labels, predictions.defer)`.

        Raises:
            BadInput: If there is no rule that promises an error.
        """
        return monitor_of(self.rule, self.calibration.unit, alpha, largest)

    # --- folders ------------------------------------------------------------------------------------------------------

    def save(self, out: str | Path) -> Path:
        """Writes the predictor to a new folder: safetensors and JSON, no code, neither weights nor inputs.

        Args:
            out: A new folder, or one that holds a predictor, which is replaced.

        Returns:
            Its path.

        Raises:
            BadInput: If the folder holds something else, or the recipe holds a function.
        """
        record = {"recipe": self.recipe.facts(), "ids": self.calibration.ids}
        stored = folders.Stored(self.rule, self.class_names, weights_fingerprint(self.model), record,
                                self.calibration.tensors())  # fmt: skip
        return folders.write(Path(out), folders.EXAMPLES, stored)

    def export(self, data: Any, out: str | Path, **options: Any) -> Exported:
        """Writes one file, .onnx or .pt2, that runs without Dropscope and without the model's code: see `export`.

        Args:
            data: A few examples, which fix the shape of one.
            out: The file.
            **options: Others that `export` takes: length, package, overwrite.

        Returns:
            The file, ready to run.
        """
        return export_recipe(self.model, self.recipe, self.rule, data, out, tokenizer=self.tokenizer, **options)

    @classmethod
    def load(
        cls, folder: str | Path, model: nn.Module, *, tokenizer: Any = None, device: str | torch.device | None = None
    ) -> UncertaintyPredictor:
        """Reads a predictor.

        Args:
            folder: What `save` wrote.
            model: The same model with the same weights.
            tokenizer: For texts: the tokenizer, or the name of its checkpoint.
            device: Where to run; where the model is, if None.

        Returns:
            The predictor.

        Raises:
            BadInput: If a file is missing or damaged, or the model has other weights.
        """
        own, stored = unwrap(model), folders.read(Path(folder), folders.EXAMPLES)
        stored.check_weights(own)
        with folders.as_saved(Path(folder)):
            known = Calibration.read(stored.record["ids"], stored.tensors)
            recipe = Recipe.of(**stored.record["recipe"])
        return cls(own, recipe, known, stored.rule, stored.class_names, tokenizer, device)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        known = self.calibration
        lines = headed("predicts", f"with {self.recipe} ({type(self.model).__name__})")
        lines += headed("knows", f"{known.n:,} labelled examples, {100 * known.right.mean():.1f} % right")
        return "\n".join(lines + (["defers   nothing"] if self.rule is None else str(self.rule).splitlines()))

    def _answers(self, inputs: Any, **options: Any) -> Answers:
        return answer(self.model, self.recipe, inputs, audited=True, device=self.device, tokenizer=self.tokenizer,
                      class_names=self.class_names, **options)  # fmt: skip

    def said(self, found: Answers) -> Predictions:
        """What answers of its recipe mean.

        Args:
            found: The answers.

        Returns:
            `Predictions`, in the order of the answers.
        """
        away = np.zeros(found.n, bool)
        if self.rule is not None:
            away = self.rule(found.uncertainty, found.predictions.tolist())
        errors = self.calibration.curve(found.uncertainty)
        return Predictions(found.ids, found.predictions, found.probabilities, found.uncertainty, errors, away,
                           found.disagreement, self.class_names)  # fmt: skip
