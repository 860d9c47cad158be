"""Adapters: a predictor as an MLflow model, and as a Hugging Face pipeline. Neither package is needed to import this.

A folder of a predictor holds neither code nor weights, so both adapters are given the model, or a function that loads
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from dropscope.deploy.predictor import UncertaintyPredictor
from dropscope.deploy.scoring import Scorer
from dropscope.errors import BadInput, Phrase


def mlflow_model(
    load: Callable[[], nn.Module], columns: Sequence[str] | None = None, text_column: str | None = None
) -> Any:
    """A `PythonModel` for `mlflow.pyfunc.save_model`, whose artifact "predictor" is a predictor's folder.

    Args:
        load: Returns the model that the predictor was fitted with; MLflow pickles this function.
        columns: Columns of the features; None takes "features", else every column of floats.
        text_column: The column of texts, for a model of texts.

    Returns:
        The model: its `predict` takes a data frame and returns one, a row each.

    Raises:
        BadInput: Without mlflow.
    """
    try:
        from mlflow.pyfunc import PythonModel
    except ImportError as error:
        what, remedy = "mlflow_model needs the package 'mlflow'", "run pip install mlflow-skinny"
        raise BadInput(what, "mlflow", Phrase("no such package"), remedy) from error

    class PredictorModel(PythonModel):  # type: ignore[misc]
        def load_context(self, context: Any) -> None:
            own = UncertaintyPredictor.load(context.artifacts["predictor"], load())
            self.scorer = Scorer(own, columns, text_column)

        def predict(self, context: Any, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None) -> Any:
            given = {str(name): np.asarray(model_input[name]) for name in model_input}
            return pd.DataFrame(self.scorer(given), index=model_input.index)

    return PredictorModel()


class TextPipeline:
    """A predictor of texts that is called as a Hugging Face text-classification pipeline is.

    Args:
        pipeline: A `transformers.pipeline("text-classification", ...)`: its model and tokenizer are used.
        folder: What `predictor.save` wrote for that model.
    """

    def __init__(self, pipeline: Any, folder: str | Path) -> None:
        self.predictor = UncertaintyPredictor.load(folder, pipeline.model, tokenizer=pipeline.tokenizer)
        self._names = pipeline.model.config.id2label

    def __call__(self, texts: str | Sequence[str]) -> list[dict[str, Any]]:
        """What the pipeline says, with the uncertainty of each text.

        Args:
            texts: One text, or several.

        Returns:
            A dict per text: "label" and "score", as a pipeline has them, "uncertainty", "error_probability", "defer".
        """
        said = self.predictor([texts] if isinstance(texts, str) else list(texts))
        return [
            {
                "label": self._names[int(one.prediction)],
                "score": float(one.probability),
                "uncertainty": float(one.uncertainty),
                "error_probability": float(one.error_probability),
                "defer": bool(one.defer),
            }
            for one in said.table.itertuples()
        ]
