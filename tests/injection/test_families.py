"""The nine Hugging Face families, each backend: what is asked for takes effect; `own` is what they run in training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dropscope.injection import families
from dropscope.injection.audits import Audited, audit, audit_resolved
from dropscope.injection.injector import injected
from dropscope.injection.observer import watch
from dropscope.injection.resolution import resolve
from dropscope.injection.sites import SiteMap, examine, find_sites
from dropscope.model.inputs import Call
from dropscope.placement.placement import Placement
from support import zoo
from support.errors import refused

transformers = pytest.importorskip("transformers")

Examined = tuple[nn.Module, SiteMap]


@pytest.fixture(scope="module", params=zoo.BACKENDS, ids=lambda pair: "-".join(pair))
def examined(request: pytest.FixtureRequest) -> Examined:
    """A family with dropout everywhere, and what was found in it."""
    family, backend = request.param
    model = zoo.hugging_face(family, backend, **zoo.DROPPING.get(family, {}))
    return model, examine(model, Call.of(zoo.text(8)))


@torch.no_grad()
def logits(model: nn.Module, count: int, batch: dict[str, Tensor] | None = None) -> Tensor:
    batch = batch or zoo.text()
    return torch.stack([model(**batch).logits for _ in range(count)])


@pytest.mark.parametrize("text", ["own", "attention=0.3", "ffn=0.3", "residual=0.2,embedding=0.1,last=0.5"])
def test_what_is_asked_for_takes_effect(examined: Examined, text: str) -> None:
    model, site_map = examined
    placement = Placement.parse(text)
    found = audit_resolved(Audited(model, site_map, Call.of(zoo.text(8))), resolve(placement, site_map), placement)
    assert found.ok, str(found)
    assert all(finding.fired and finding.effect for finding in found.findings)


def test_attention_and_ffn_are_one_site_per_layer(examined: Examined) -> None:
    _, site_map = examined
    for group, position in (("attention", "weights"), ("ffn", "output")):
        resolved = resolve(Placement.parse(f"{group}=0.3"), site_map)
        assert len(resolved) == 2
        assert {point.position for point in resolved} == {position}


def test_every_part_of_own_has_its_role(examined: Examined) -> None:
    """ALBERT's FFN dropout is dead, DistilBERT has none after attention, the decoders none before the head."""
    model, site_map = examined
    lacking = {"albert": {"ffn"}, "distilbert": {"residual"}, "gpt2": {"head"}, "gpt_neo": {"head"}}
    roles = {site.role for site in site_map.sites if site.own_rate}
    assert roles == {"attention", "ffn", "residual", "embedding", "head"} - lacking.get(model.config.model_type, set())


def test_attention_alone_makes_the_outputs_vary(examined: Examined) -> None:
    """R2."""
    model, site_map = examined
    with injected(model, "attention=0.3", site_map=site_map):
        assert float(logits(model, 4).std(0).max()) > 1e-4
    with injected(model, "none", site_map=site_map):
        assert float(logits(model, 3).std(0).max()) == 0.0


def test_own_is_what_train_mode_runs(examined: Examined) -> None:
    """Sites and rates, seen by an observer of an ordinary train-mode loop that knows nothing of `own`."""
    model, site_map = examined
    own = resolve(Placement.parse("own"), site_map)
    wanted = {}
    for point, spec in own.items():
        name = point.name if point.position == "output" else f"{point.name}@{point.position}"
        wanted.setdefault(name, []).append(spec.rate)
    with watch(model) as seen:
        model.train()
        logits(model, 6, zoo.text(8))
        model.eval()
    ran = {d.name: (d.rate, d.active // 6) for d in seen.dropouts if d.active}
    assert ran == {name: (rates[0], len(rates)) for name, rates in wanted.items()}
    assert seen.ok, str(seen)


def test_no_noise_is_the_model_bit_for_bit(examined: Examined) -> None:
    model, _ = examined
    plain = logits(model, 1)[0]
    model.train()
    with injected(model, "none"):
        drawn = logits(model, 2)
    model.eval()
    assert torch.equal(drawn[0], plain)
    assert torch.equal(drawn[1], plain)


def test_sites_have_one_name_in_both_backends() -> None:
    for family in (name for name, backend in zoo.BACKENDS if backend == "sdpa"):
        both = [examine(zoo.hugging_face(family, backend), Call.of(zoo.text())) for backend in ("eager", "sdpa")]
        assert [(s.name, s.kind, s.positions) for s in both[0].sites] == [
            (s.name, s.kind, s.positions) for s in both[1].sites
        ]
        assert list(both[0].own) == list(both[1].own)


def test_both_backends_agree_under_the_same_noise() -> None:
    """Attention noise is a function of its key, so eager and sdpa give one answer."""
    for family in ("bert", "gpt2", "distilbert"):
        drawn = []
        for backend in ("eager", "sdpa"):
            model = zoo.hugging_face(family, backend)
            with injected(model, "own,attention=0.4"):
                drawn.append(logits(model, 3))
        assert torch.allclose(drawn[0], drawn[1], atol=1e-4)


@pytest.mark.parametrize(
    ("family", "backend"), [("bert", "eager"), ("bert", "sdpa"), ("gpt2", "eager"), ("gpt2", "sdpa")]
)
def test_own_is_distributed_as_train_mode(family: str, backend: str) -> None:
    """Mean and spread of 400 passes each; bounds at five standard errors."""
    model, count, one = zoo.hugging_face(family, backend), 400, zoo.text(2)
    batch = {name: part.repeat(40, 1) for name, part in one.items()}
    with torch.no_grad(), injected(model, "own") as noise:
        rows = []
        for first in range(0, count, 40):
            noise.at(torch.arange(first, first + 40).repeat_interleave(2))
            rows.append(model(**batch).logits)
    ours = torch.cat(rows).view(count, 2, 3)
    torch.manual_seed(0)
    model.train()
    theirs = logits(model, count // 40, batch).view(count, 2, 3)
    spread = (ours.var(0) + theirs.var(0)).sqrt() / count**0.5
    assert float(((ours.mean(0) - theirs.mean(0)) / spread).abs().max()) < 5
    # The log of a ratio of two variances has standard error sqrt(2 (kurtosis - 1) / n); five of them, for kurtosis 3.
    ratio = (ours.var(0) / theirs.var(0)).log().abs()
    assert float(ratio.max()) < 5 * (2 * 2 / count) ** 0.5


def test_each_call_of_a_shared_layer_is_selectable() -> None:
    """R17: ALBERT's layers are one module; RoBERTa's head calls its dropout twice."""
    albert = zoo.hugging_face("albert", "sdpa")
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention"
    (finding,) = audit(albert, f"{layer}#1@weights=0.5", zoo.text(8)).findings
    assert (finding.site, finding.ok) == (f"{layer}#1@weights", True)
    roberta = zoo.hugging_face("roberta")
    outputs = []
    for text in ("classifier.dropout#0=0.5", "classifier.dropout#1=0.5", "classifier.dropout=0.5"):
        with injected(roberta, text):
            outputs.append(logits(roberta, 1))
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])


def test_a_field_that_nothing_reads_fails_the_audit() -> None:
    """R7: BertConfig takes attention_dropout=0.5 without a word, and no dropout gets that rate."""
    tiny = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 50,
    }
    config = transformers.BertConfig(**tiny, attention_dropout=0.5)
    model = transformers.BertForSequenceClassification(config)
    found = audit(model, "own", {"input_ids": torch.arange(12).reshape(2, 6)})
    assert any("attention_dropout=0.5 is no field of BertConfig" in problem for problem in found.problems)
    assert families.ignored_fields(transformers.BertConfig(**tiny)) == {}


def test_rates_reach_the_fields_of_each_family_and_then_the_model() -> None:
    tiny = {
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "vocab_size": 50,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    config = families.with_rates(transformers.GPT2Config(**tiny), attention=0.3, hidden=0.2, head=0.0)
    assert (config.attn_pdrop, config.resid_pdrop, config.embd_pdrop) == (0.3, 0.2, 0.2)
    sites = find_sites(
        transformers.GPT2ForSequenceClassification(config), {"input_ids": torch.arange(1, 13).reshape(2, 6)}
    )
    assert {site.role: site.own_rate for site in sites if site.own_rate is not None} == {
        "embedding": 0.2, "attention": 0.3, "residual": 0.2, "ffn": 0.2,
    }  # fmt: skip


def test_an_unknown_family_or_part_is_refused() -> None:
    with refused("config") as caught:
        families.with_rates(object(), attention=0.1)
    assert caught.value.received == "object"
    with refused("rates") as caught:
        families.with_rates(transformers.BertConfig(), atention=0.1)
    assert caught.value.received == "atention"
    assert "'attention'" in caught.value.remedy
