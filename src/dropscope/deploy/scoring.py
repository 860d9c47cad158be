"""Offline scoring: a predictor over files of any size, in batches that need nothing of each other.

Owns the callable that scores one batch and the run over parquet files: a part per row group, written whole or not at
all, so that shards and interrupted runs add up to the same. See `tallies` for the hash of a result.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from dropscope.atomic import same_spec
from dropscope.checks import check_count
from dropscope.data import Batch, Data
from dropscope.deploy.predictions import Predictions
from dropscope.deploy.predictor import UncertaintyPredictor
from dropscope.deploy.recipes import Prepared, open_recipe
from dropscope.deploy.rowgroups import FEATURES, Unit, feature_columns, find_files, units_of
from dropscope.deploy.tallies import Tally, as_columns, content_keys
from dropscope.display import headed
from dropscope.engine import Tick
from dropscope.errors import BadInput, Phrase, nearest
from dropscope.model import Call, digest, weights_fingerprint
from dropscope.progress import track
from dropscope.runs import Place, Shard, open_place

_FEW = 32  # rows that a model is traced on
_RECORD, _PARTS = "score.json", "parts"
_META = b"dropscope"
_FORMAT = {"format": "dropscope scores", "version": 1}

Columns = Mapping[str, NDArray[Any]]


class Scorer:
    """A predictor as a function of one batch of columns. It keeps nothing of a batch, and threads may share it.

    The answer to a row depends on the row alone, so that batches may be cut, ordered and spread over machines in any
    way: `ray.data.read_parquet(...).map_batches(Scorer(predictor))`.

    Args:
        predictor: A predictor of examples.
        columns: Columns of the features, in the order of the model's input, or one column of lists; None takes the
            column "features", else every column of floats.
        text_column: The column of texts, for a model of texts.

    Examples:
        >>> torch.manual_seed(0).initial_seed()
        0
        >>> net, x = torch.nn.Linear(2, 3), torch.randn(100, 2)
        >>> predictor = UncertaintyPredictor.fit(net, (x, torch.randint(0, 3, (100,))), max_error=None)
        >>> said = Scorer(predictor)({"a": x[:5, 0].numpy(), "b": x[:5, 1].numpy()})
        >>> sorted(said), len(said["prediction"])
        (['defer', 'error_probability', 'prediction', 'probability', 'uncertainty'], 5)
    """

    def __init__(
        self, predictor: UncertaintyPredictor, columns: Sequence[str] | None = None, text_column: str | None = None
    ) -> None:
        self.predictor, self.columns, self.text_column = predictor, columns, text_column
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the rest is made there."""
        return {"predictor": self.predictor, "columns": self.columns, "text_column": self.text_column}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, batch: Columns) -> dict[str, NDArray[Any]]:
        """Scores a batch.

        Args:
            batch: Column → values, one per row.

        Returns:
            Column → values: "prediction", "probability" (of that class), "uncertainty", "error_probability", "defer".

        Raises:
            BadInput: If columns are missing or no numbers.
        """
        if self.text_column is not None:
            said = self.predictor([str(text) for text in _column(batch, self.text_column, "text_column")])
        else:
            said = self._scored(self.matrix(batch))
        chosen = said.probabilities[np.arange(len(said)), said.labels]
        return {
            "prediction": said.labels.astype(np.int32), "probability": chosen.astype(np.float32),
            "uncertainty": said.uncertainty.astype(np.float32),
            "error_probability": said.error_probability.astype(np.float32), "defer": said.defer,
        }  # fmt: skip

    def matrix(self, batch: Columns) -> torch.Tensor:
        """The features of a batch, `[rows, …]`, float32.

        Raises:
            BadInput: If columns are missing or no numbers.
        """
        names = self.columns or _usual_columns(batch)
        parts = [_numbers(_column(batch, name, "columns"), name) for name in names]
        values = parts[0] if len(parts) == 1 and parts[0].ndim > 1 else np.column_stack(parts)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))[0])
            remedy = "fill in or leave out such rows"
            raise BadInput(
                "columns must hold finite numbers", "columns", Phrase(f"NaN or infinity in row {row}"), remedy
            )
        return torch.from_numpy(np.require(values, np.float32, ("C", "W")))  # a file's own memory is not writable

    def _scored(self, matrix: torch.Tensor) -> Predictions:
        with self._lock:  # traced and checked once, on the first rows
            if self._prepared is None:
                few, own = matrix[:_FEW], self.predictor
                self._prepared = open_recipe(own.model, own.recipe, few, audited=True, votes=False, device=own.device)
        call = Call((matrix,))
        keys = call.keys() if self._prepared.draws else torch.zeros(len(matrix), dtype=torch.int64)
        data = Data((Batch(call, None, keys, [None] * len(matrix), None),), "fingerprint", "")
        return self.predictor.said(self._prepared.answers(data))


@dataclass(frozen=True)
class Scored:
    """A scored data set, or a share of it. Prints itself.

    Attributes:
        folder: Where its parts are.
        rows: Rows that are scored by now, by anybody.
        parts: Parts that are there.
        units: Parts of the whole.
        computed: Parts that were computed now.
        hash: Of all rows with their scores, whatever their order and parts; None while parts are missing.
        deferred: Share of the rows that is deferred.
    """

    folder: str
    rows: int
    parts: int
    units: int
    computed: int
    hash: str | None
    deferred: float

    def __str__(self) -> str:
        lines = headed("scored", f"{self.rows:,} rows, {100 * self.deferred:.1f} % deferred")
        lines += headed("parts", f"{self.computed} computed now, {self.parts} of {self.units} are in {self.folder}")
        whole = self.hash or "when no part is missing: run the other shards, or this command again"
        return "\n".join(lines + headed("hash", whole))


def score(
    predictor: UncertaintyPredictor,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    columns: Sequence[str] | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    shard: str = "1/1",
    batch_size: int = 8192,
    progress: bool | None = None,
) -> Scored:
    """Scores files of parquet, row group by row group, in memory that does not grow with them.

    Every row group becomes one part below `out/parts`, whole or absent. A run that was interrupted goes on where it
    was; shards write into one folder and know nothing of each other. The same rows get the same hash in any case.

    Args:
        predictor: A predictor of examples.
        data: Files: a path, a pattern such as "rows/*.parquet", or an address that fsspec knows, such as
            "s3://bucket/*.parquet"; or several.
        out: Folder of the parts, or an address.
        columns: Columns of the features, in the order of the model's input, or one column of lists; None takes the
            column "features", else every column of floats.
        text_column: The column of texts, for a model of texts.
        id_column: A column that names each row: parts and hash have it. None takes a hash of the row's features.
        shard: Which share of the row groups to score, such as "2/8".
        batch_size: Rows at once.
        progress: True or False; None shows progress where it is read.

    Returns:
        What was scored, and the hash once everything is.

    Raises:
        BadInput: For anything that cannot be used, before any pass; or a folder of another run.
    """
    own, check = Shard.parse(shard), check_count(batch_size, "batch_size", 8192)
    files = find_files(data)
    named = feature_columns(files[0], columns, text_column, id_column)
    scorer = Scorer(predictor, named if text_column is None else None, text_column)
    place = open_place(out)
    units = units_of(files)
    spec = {
        **_FORMAT, "recipe": predictor.recipe.facts(), "weights": weights_fingerprint(predictor.model),
        "rule": None if predictor.rule is None else predictor.rule.facts(), "columns": named, "text": text_column,
        "id": id_column, "batch_size": check, "files": [[file.name, file.rows, file.mark] for file in files],
    }  # fmt: skip
    mark = _claim(place, spec)
    found = _finished(place, units, id_column, mark)
    left = [unit for unit in own.share(units, lambda unit: unit.rows) if unit.name not in found]
    with track("scoring", sum(unit.rows for unit in left), "rows", show=progress) as tick:
        for unit in left:
            found[unit.name] = _score_unit(place, unit, scorer, id_column, check, mark, tick)
    total = sum(found.values(), Tally())
    complete = len(found) == len(units)
    return Scored(str(place.at), total.rows, len(found), len(units), len(left), total.hash if complete else None,
                  total.deferred / max(total.rows, 1))  # fmt: skip


def _usual_columns(batch: Columns) -> list[str]:
    usual = next((name for name in FEATURES if name in batch), None)
    return [name for name, values in batch.items() if values.dtype.kind == "f"] if usual is None else [usual]


def _column(batch: Columns, name: str, argument: str) -> NDArray[Any]:
    if name not in batch:
        raise BadInput(f"{argument} must name columns of the data", argument, name, nearest(name, batch))
    return batch[name]


def _numbers(values: NDArray[Any], name: str) -> NDArray[Any]:
    found = np.stack(list(values)) if values.dtype == object and len(values) else values
    if found.dtype.kind not in "fiub":
        raise BadInput("columns must hold numbers", "columns", Phrase(f"{found.dtype} in {name!r}"), "name others")
    return found


def plan_scoring(
    data: str | Path | Sequence[str | Path],
    *,
    columns: Sequence[str] | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    shard: str = "1/1",
    batch_size: int = 8192,
) -> dict[str, Any]:
    """What `score` would read, from the footers of the files: everything is checked, nothing run."""
    own, _ = Shard.parse(shard), check_count(batch_size, "batch_size", 8192)
    files = find_files(data)
    named = feature_columns(files[0], columns, text_column, id_column)
    units = units_of(files)
    mine = own.share(units, lambda unit: unit.rows)
    return {"files": len(files), "rows": sum(file.rows for file in files), "parts": len(units),
            "parts_of_shard": len(mine), "columns": [text_column] if named is None else named}  # fmt: skip


# --- parts ------------------------------------------------------------------------------------------------------------


def _claim(place: Place, spec: dict[str, Any]) -> str:
    """Makes the place this run's, or checks that it is; the mark that its parts bear."""
    text = json.dumps(json.loads(json.dumps(spec, default=str)), indent=1, sort_keys=True)
    if not place.create(_RECORD, text.encode()):
        try:
            known = json.loads(place.read(_RECORD))
        except ValueError as error:
            got = Phrase(f"a {_RECORD} that is damaged")
            raise BadInput("out must hold one run", "out", got, "choose another folder") from error
        same_spec(known, json.loads(text), Path(_RECORD), "choose another folder")
    return digest(json.loads(text))


def _finished(place: Place, units: Sequence[Unit], id_column: str | None, mark: str) -> dict[str, Tally]:
    """The parts that are there whole, every row as its hash says; any other is computed again."""
    there, found = {*place.names(_PARTS)}, {}
    for unit in units:
        if unit.name not in there:
            continue
        try:
            content = io.BytesIO(place.read(f"{_PARTS}/{unit.name}"))
            table = pq.read_table(content)
            known = json.loads(table.schema.metadata[_META])
            columns = as_columns(table.combine_chunks().to_batches()[0])
            named = columns.pop(id_column or "key")
            tally = Tally.of_rows(named if id_column is None else content_keys(named), columns)
            if known["mark"] == mark and tally == Tally.of(known) and tally.rows == unit.rows:
                found[unit.name] = tally
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            continue
    return found


def _score_unit(
    place: Place, unit: Unit, scorer: Scorer, id_column: str | None, size: int, mark: str, tick: Tick
) -> Tally:
    text = scorer.text_column
    read = [*dict.fromkeys([*(scorer.columns or ()), *(name for name in (text, id_column) if name is not None)])]
    total, tables = Tally(), []
    for batch in unit.file.batches(unit.group, read, size):
        columns = as_columns(batch)
        said = scorer(columns)
        inputs = columns[text] if text is not None else scorer.matrix(columns).numpy()
        keys = content_keys(inputs if id_column is None else columns[id_column])
        total += Tally.of_rows(keys, said)
        named = {"key": keys} if id_column is None else {id_column: batch.column(id_column)}
        tables.append(pa.table({**named, **said}))
        tick(batch.num_rows)
    table = pa.concat_tables(tables)
    table = table.replace_schema_metadata({_META: json.dumps({"mark": mark, **total.facts()})})
    made = io.BytesIO()
    pq.write_table(table, made, compression="zstd")
    place.write(f"{_PARTS}/{unit.name}", made.getvalue())
    return total
