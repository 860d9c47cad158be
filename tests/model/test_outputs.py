"""Probabilities from what a model returns: closed cases, every container of an output, then what is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from dropscope.model.outputs import KINDS, classes, predictions, probabilities
from support.errors import refused

LOGITS = torch.tensor([[0.0, math.log(3.0)], [2.0, -1.0]])


def test_logits_closed_case():
    p = probabilities(LOGITS)
    torch.testing.assert_close(p[0], torch.tensor([0.25, 0.75]))
    assert classes(p) == 2
    assert predictions(p).tolist() == [1, 0]


def test_binary_logit_closed_case_and_precision_at_the_edges():
    p = probabilities(torch.tensor([0.0, math.log(3.0), 40.0]), "binary_logit")
    torch.testing.assert_close(p[:2], torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
    assert p[2, 0] > 0  # 1 − σ would be 0


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 1, 4, 5)])
def test_binary_logit_shapes(shape):
    p = probabilities(torch.randn(shape), "binary_logit")
    assert p.shape == (3, 2, *shape[2:])
    torch.testing.assert_close(p.sum(1), torch.ones(3, *shape[2:]))


@pytest.mark.parametrize("spatial", [(), (6, 7)])
def test_multilabel_has_the_labels_after_the_classes(spatial):
    logits = torch.randn(3, 5, *spatial)
    p = probabilities(logits, "multilabel_logits")
    assert p.shape == (3, 2, 5, *spatial)
    torch.testing.assert_close(p[:, 1], logits.sigmoid())
    assert predictions(p).shape == (3, 5, *spatial)


def test_dense_logits_keep_their_space():
    p = probabilities(torch.randn(2, 3, 4, 5, 6))
    assert p.shape == (2, 3, 4, 5, 6)
    torch.testing.assert_close(p.sum(1), torch.ones(2, 4, 5, 6))


@pytest.mark.parametrize(
    ("given", "returned"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
)
@pytest.mark.parametrize("kind", ["logits", "multilabel_logits"])
def test_dtypes(given, returned, kind):
    p = probabilities(LOGITS.to(given), kind)
    assert p.dtype == returned
    torch.testing.assert_close(p, probabilities(LOGITS.to(given).to(returned), kind))


@pytest.mark.parametrize(
    "output",
    [
        SequenceClassifierOutput(logits=LOGITS),
        SequenceClassifierOutput(loss=torch.tensor(1.0), logits=LOGITS),
        {"features": torch.zeros(2, 8), "logits": LOGITS},
        SimpleNamespace(logits=LOGITS),
        (LOGITS, torch.zeros(2, 8)),
        [LOGITS, None],
    ],
)
def test_containers(output):
    assert torch.equal(probabilities(output), LOGITS.softmax(1))


@pytest.mark.parametrize("key", ["probabilities", "probs", "logits"])
def test_probabilities_in_a_dict(key):
    p = LOGITS.softmax(1)
    assert torch.equal(probabilities({key: p}, "probabilities"), p)


def test_a_function_gets_the_whole_output():
    assert torch.equal(probabilities({"scores": LOGITS}, lambda o: o["scores"].softmax(1)), LOGITS.softmax(1))


def test_probabilities_of_half_precision_pass():
    p = probabilities(torch.randn(64, 10).softmax(1).bfloat16(), "probabilities")
    assert p.dtype == torch.float32


def test_rounding_just_outside_is_clamped():
    p = probabilities(torch.tensor([[1.0000001, -1e-7]]), "probabilities")
    assert p.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("output", "kind", "says"),
    [
        (torch.randn(4, 1), "logits", "outputs='binary_logit'"),
        (torch.randn(4), "logits", "outputs='binary_logit'"),
        (torch.randn(4, 1, 3, 3), "logits", "outputs='binary_logit'"),
        (torch.rand(4, 1), "probabilities", "sigmoid"),
        (torch.randn(4, 3), "binary_logit", "outputs='logits'"),
        (torch.randn(4), "multilabel_logits", "binary_logit"),
        (torch.tensor(1.0), "logits", "loss"),
        (torch.tensor([1, 0]), "logits", "before any argmax"),
        (torch.randn(4, 3).softmax(1), "logits", "outputs='probabilities'"),
        (torch.randn(4, 3) * 5, "probabilities", "outputs='logits'"),
        (torch.full((4, 3), 0.5), "probabilities", "off by 0.5"),
        ({"scores": LOGITS, "loss": None}, "logits", "got ['scores', 'loss']. Write outputs=lambda o: o['scores']"),
        ((None, LOGITS), "logits", "lambda"),
        ("text", "logits", "lambda"),
        (LOGITS, "logit", "got 'logit'. Did you mean 'logits'"),
        (LOGITS, lambda o: "no", "got str"),
        (LOGITS, lambda o: o, "values from -1 to 2"),
    ],
)
def test_refused(output, kind, says):
    with refused("outputs") as caught:
        probabilities(output, kind)
    assert says in str(caught.value)


@pytest.mark.parametrize("kind", [*KINDS, lambda o: o])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite_says_how_many_and_whose_fault(kind, bad):
    output = torch.full((5, 1), 1.0) if kind == "binary_logit" else torch.full((5, 2), 0.5)
    output[2:4, 0] = bad
    with refused("model") as caught:
        probabilities(output, kind)
    assert "2 of 5 examples" in caught.value.received
    assert "first at 2" in caught.value.received
    assert "the model itself" in caught.value.remedy


def test_a_sum_that_overflows_is_still_finite():
    assert probabilities(torch.tensor([[3e38, 3e38]])).tolist() == [[0.5, 0.5]]


def test_one_hot_logits_are_logits():
    torch.testing.assert_close(probabilities(torch.eye(3)), torch.eye(3).softmax(1))


def test_unchecked_leaves_values_alone():
    assert probabilities(torch.full((1, 2), math.nan), check=False).isnan().all()


def test_a_classifier_of_tokens_has_its_classes_last() -> None:
    from transformers import BertConfig, BertForTokenClassification

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    torch.manual_seed(0)
    model = BertForTokenClassification(config).eval()
    tokens = torch.randint(1, 50, (2, 7))
    with torch.no_grad():
        output = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        torch.testing.assert_close(probabilities(output), output.logits.softmax(-1).movedim(-1, 1))
