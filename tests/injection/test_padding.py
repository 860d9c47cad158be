"""Families of text models: the same examples padded to two lengths get the same masks, and so the same output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dropscope.errors import BadInput
from dropscope.injection import examine, injected
from dropscope.model import Call
from dropscope.tracing import Point

transformers = pytest.importorskip("transformers")

TEXTS = ("all=0.2", "attention=0.2", "own", "last=0.5")
LENGTHS = (9, 14)
WORDS, REAL, CHOICES = 40, (4, 9, 7), 2

_ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_ENCODER |= {"max_position_embeddings": 64}
_DROPPING: dict[str, Any] = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
_RELATIVE = {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_BUCKETS = {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3}
_BART = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
         (("layers", 2), ("attention_heads", 2), ("ffn_dim", 24))}  # fmt: skip
_BART |= {"d_model": 16, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 2}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", _ENCODER),
    "bert for multiple choice": ("BertForMultipleChoice", _ENCODER),
    "roberta": ("RobertaForSequenceClassification", _ENCODER),
    "distilbert": ("DistilBertForSequenceClassification", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}),
    "albert": ("AlbertForSequenceClassification", {**_ENCODER, **_DROPPING, "embedding_size": 8}),
    "electra": ("ElectraForSequenceClassification", {**_ENCODER, "embedding_size": 8}),
    "deberta": ("DebertaForSequenceClassification", _RELATIVE),
    "deberta-v2": ("DebertaV2ForSequenceClassification", _RELATIVE),
    "deberta-v3": ("DebertaV2ForSequenceClassification", {**_RELATIVE, **_BUCKETS}),
    "xlnet": (
        "XLNetForSequenceClassification",
        {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "summary_type": "first"},
    ),
    "t5": ("T5EncoderModel", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}),
    "gpt2": ("GPT2ForSequenceClassification", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "longformer": ("LongformerForSequenceClassification", {**_ENCODER, "attention_window": 4}),
    "mpnet": ("MPNetForSequenceClassification", _ENCODER),
    "funnel": (
        "FunnelForSequenceClassification",
        {"block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24},
    ),
    "bart": ("BartForSequenceClassification", _BART),
    "fnet": ("FNetForSequenceClassification", _ENCODER),
}
# FNet mixes all tokens by a Fourier transform and takes no mask: its plain output depends on padding already.
WITHOUT_MASK = ("fnet",)


def build(family: str) -> nn.Module:
    name, fields = FAMILIES[family]
    kind = getattr(transformers, name)
    config = kind.config_class(vocab_size=WORDS, num_labels=3, pad_token_id=1, **fields)
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.3)
    return model.eval()


def texts(family: str, length: int) -> dict[str, Tensor]:
    rows = REAL * (CHOICES if "choice" in family else 1)
    words = torch.randint(5, WORDS, (len(rows), max(REAL)), generator=torch.Generator().manual_seed(2))
    ids, mask = torch.full((len(rows), length), 1), torch.zeros(len(rows), length, dtype=torch.long)
    for i, count in enumerate(rows):
        ids[i, :count], mask[i, :count] = words[i, :count], 1
        ids[i, count - 1] = 2  # Bart reads its answer there
    if "choice" in family:
        ids, mask = ids.view(len(REAL), CHOICES, length), mask.view(len(REAL), CHOICES, length)
    return {"input_ids": ids, "attention_mask": mask}


def output(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    found = model(**inputs)
    return found.logits if hasattr(found, "logits") else found.last_hidden_state[:, : min(REAL)]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in WITHOUT_MASK])
@torch.no_grad()
def test_every_family_gets_the_same_masks_at_any_length(family: str) -> None:
    model = build(family)
    batches = [texts(family, length) for length in LENGTHS]
    maps = [examine(model, Call.of(batch)) for batch in batches]
    plain = output(model, batches[0])
    for text in TEXTS:
        if text.startswith("last") and family == "t5":
            continue  # an encoder has no head
        found = []
        for batch, site_map in zip(batches, maps, strict=True):
            with injected(model, text, site_map=site_map) as noise:
                noise.at(pass_=0)
                found.append(output(model, batch))
        assert float((found[0] - found[1]).abs().max()) < 1e-5, text
        assert not torch.allclose(found[0], plain, atol=1e-3), text


@pytest.mark.parametrize("family", WITHOUT_MASK)
@torch.no_grad()
def test_a_family_without_a_mask_depends_on_padding_by_itself(family: str) -> None:
    model = build(family)
    short, long = (texts(family, length)["input_ids"] for length in LENGTHS)
    assert not torch.allclose(model(short).logits, model(long).logits, atol=1e-3)
    with pytest.raises(BadInput), injected(model, "attention=0.2"):
        model(short)


def centred(family: str, length: int) -> dict[Point, tuple[int | None, int | None]]:
    values = examine(build(family), Call.of(texts(family, length))).values
    found = {point: (v.layout.batch_dim, v.layout.centred) for point, v in values.items()}
    return {point: pair for point, pair in found.items() if pair[1] is not None}


def test_tables_of_distances_count_from_their_middle() -> None:
    assert {point.name.rpartition(".")[2] for point in centred("deberta", 9)} >= {"pos_proj", "pos_q_proj"}
    assert set(centred("xlnet", 9).values()) == {(1, -3)}
    assert set(centred("funnel", 9).values()) == {(None, -2)}
    assert centred("bert", 9) == {}


def test_a_table_of_fixed_size_is_none_even_where_its_size_fits() -> None:
    assert not any(point.name.endswith("pos_dropout") for point in centred("deberta", 64))
