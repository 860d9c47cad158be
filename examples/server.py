"""A predictor behind HTTP: POST {"rows": [[…], …]} to /predict. Needs fastapi and, to run, uvicorn.

dropscope calibrate server.py:model --data server.py:labelled --max-error 0.3 --out predictor
uvicorn server:app
"""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from torch import nn

import dropscope as ds


def model() -> nn.Module:
    torch.manual_seed(0)  # in place of your weights
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3)).eval()


def labelled() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(400, 6, generator=draw)
    with torch.no_grad():
        return x, torch.multinomial((3 * model()(x)).softmax(1), 1, generator=draw)[:, 0]


class Rows(BaseModel):
    rows: list[list[float]]


@lru_cache(1)
def predictor() -> ds.UncertaintyPredictor:  # threads may share it
    return ds.UncertaintyPredictor.load(os.environ.get("PREDICTOR", "predictor"), model())


app = FastAPI()


@app.post("/predict")
def predict(given: Rows) -> list[dict[str, object]]:
    try:
        said = predictor()(torch.tensor(given.rows))
    except (ds.BadInput, ValueError) as error:
        raise HTTPException(422, str(error)) from error
    return said.table.drop(columns="id").to_dict(orient="records")
