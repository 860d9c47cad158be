"""Eight questions to Monte Carlo dropout libraries about a trained network, answered by running them.

    python benchmarks/peer_features.py --peers build/peers
    python benchmarks/peer_features.py --peers build/peers --only batchnorm

Each library runs 20 passes as its documentation says (peers.py), Dropscope those of `own`. Every cell is what happened.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dropscope as ds
import peers
from peers import Passes

PASSES = 20
Probe = Callable[[nn.Module, Passes], str]


class Functional(nn.Module):
    """Its only dropout is a call inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.relu(self.first(x)), 0.5, self.training))


class Attention(nn.Module):
    """A Hugging Face classifier whose only dropout is on its attention weights."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5, "classifier_dropout": 0.0}
        self.bert = BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=3, **size, **rates))
        for parameter in self.bert.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bert(input_ids=tokens).logits


def modules() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))


def volumes() -> nn.Module:
    layers = nn.Conv3d(1, 8, 3), nn.ReLU(), nn.Dropout3d(0.5), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 4)
    return nn.Sequential(*layers)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))


def varies(x: Tensor) -> Probe:
    def probe(_: nn.Module, passes: Passes) -> str:
        return "on" if float(passes(x).float().std(0).amax()) > 0 else "off, without a word"

    return probe


def batchnorm(net: nn.Module, passes: Passes) -> str:
    before = [buffer.clone() for buffer in net.buffers()]
    passes(torch.randn(8, 16) + 3)
    return "left alone" if all(map(torch.equal, before, net.buffers())) else "moves"


def mode(net: nn.Module, passes: Passes) -> str:
    net.eval()
    passes(torch.randn(8, 16))
    return "restored" if not any(module.training for module in net.modules()) else "left in train mode"


def batches(_: nn.Module, passes: Passes) -> str:
    x = torch.randn(8, 16)
    torch.manual_seed(0)
    whole = passes(x)
    torch.manual_seed(0)
    return "the same" if torch.allclose(whole[:, 5:], passes(x[5:]), atol=1e-5) else "others"


QUESTIONS: dict[str, tuple[str, Callable[[], nn.Module], Probe]] = {
    "modules": ("dropout as a module", modules, varies(torch.randn(4, 16))),
    "functional": ("dropout called inside `forward`", Functional, varies(torch.randn(4, 16))),
    "attention": ("dropout of attention (Hugging Face)", Attention, varies(torch.randint(1, 50, (4, 9)))),
    "dropout3d": ("`nn.Dropout3d`", volumes, varies(torch.randn(4, 1, 6, 6, 6))),
    "batchnorm": ("running statistics of BatchNorm", normalised, batchnorm),
    "mode": ("the model afterwards", modules, mode),
    "batches": ("masks of an example in another batch", modules, batches),
    "nothing": ("a model without any dropout", lambda: nn.Linear(16, 4), varies(torch.randn(4, 16))),
}


WAYS: dict[str, Callable[[nn.Module, int], Passes]] = {
    "Dropscope": lambda net, passes: lambda x: ds.sample(net, "own", x, passes=passes),
    "torch-uncertainty": lambda net, passes: peers.torch_uncertainty(net, passes, on_batch=False),
    "baal": peers.baal,
    "lightning-uq-box": peers.lightning_uq_box,
}


def answer(way: str, question: str) -> str:
    _, build, probe = QUESTIONS[question]
    torch.manual_seed(0)
    net = build().eval()
    try:
        with torch.no_grad():
            return probe(net, WAYS[way](net, PASSES))
    except Exception as reason:  # whatever it raises is the answer
        return f"error: {type(reason).__name__}: {str(reason).splitlines()[0][:90]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, help="folder of the libraries (peers.txt)")
    parser.add_argument("--only", choices=QUESTIONS, help="one question")
    asked = parser.parse_args()
    peers.prepare(asked.peers)
    print("| " + " | ".join(["", *WAYS]) + " |\n|" + "---|" * (1 + len(WAYS)))
    for question in [asked.only] if asked.only else QUESTIONS:
        cells = [answer(way, question) for way in WAYS]
        print("| " + " | ".join([QUESTIONS[question][0], *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
