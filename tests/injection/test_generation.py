"""Generation inside `injected` and `watch`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dropscope.injection import injected, watch
from support.errors import refused
from support.language_models import DECODERS, TWO_PARTS, language_model, prompts

pytest.importorskip("transformers")


def generated(model: Any, tokens: torch.Tensor, **options: Any) -> Any:
    return model.generate(
        tokens, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True, **options
    )


@pytest.mark.parametrize("placement", ["all=0.2", "attention=0.3", "lm_head=0.4"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_generation_is_what_one_forward_of_the_whole_sequence_predicts(name: str, placement: str) -> None:
    model, tokens = language_model(name), prompts(5, 5)
    with torch.no_grad(), injected(model, placement, seed=3) as noise:
        noise.at(pass_=7, ids=list("abcde"))
        result = generated(model, tokens)
        whole = model(result.sequences).logits[:, 4:-1]
    torch.testing.assert_close(torch.stack(result.logits, 1), whole, rtol=1e-4, atol=1e-5)


def test_each_generation_is_the_next_pass_and_a_prompt_has_its_usual_key() -> None:
    model, tokens = language_model("gpt2"), prompts()
    with torch.no_grad(), injected(model, "all=0.3") as noise:
        first, second = (generated(model, tokens).logits[0] for _ in range(2))
        plain = model(tokens)
        noise.at(pass_=0)
        forward = model(tokens).logits[:, -1]
        alone = generated(model, tokens[:1]).logits[0]
    assert not torch.allclose(first, second)
    assert not torch.allclose(second, plain.logits[:, -1])
    torch.testing.assert_close(first, forward, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first[:1], alone, rtol=1e-4, atol=1e-5)


def test_beams_of_one_prompt_share_its_masks() -> None:
    model, tokens = language_model("gpt2"), prompts(2)
    with torch.no_grad(), injected(model, "all=0.3") as noise:
        noise.at(pass_=0, ids=["a", "b"])
        first = generated(model, tokens, num_beams=3, num_return_sequences=3).logits[0]
        single = generated(model, tokens).logits[0]
    torch.testing.assert_close(first, single.repeat_interleave(3, 0), rtol=1e-4, atol=1e-5)


def test_the_model_has_its_own_generate_again() -> None:
    model = language_model("gpt2")
    with injected(model, "all=0.3"):
        assert "generate" in vars(model)
    assert "generate" not in vars(model)


@pytest.mark.parametrize("name", TWO_PARTS)
def test_generation_of_a_model_with_an_encoder_is_refused(name: str) -> None:
    model = language_model(name)
    with injected(model, "all=0.3"), refused("model"):
        model.generate(prompts(), max_new_tokens=2)


def test_a_cache_is_refused() -> None:
    model, tokens = language_model("gpt2"), prompts()
    with torch.no_grad(), injected(model, "all=0.3"):
        cache = model(tokens).past_key_values
        with refused("past_key_values"):
            model(tokens[:, -1:], past_key_values=cache)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", [*DECODERS, *TWO_PARTS])
def test_a_generation_is_watched(name: str, use_cache: bool) -> None:
    model, tokens = language_model(name), prompts()
    before = model.generate(tokens, max_new_tokens=4, do_sample=False, use_cache=use_cache)
    with watch(model) as seen:
        after = model.generate(tokens, max_new_tokens=4, do_sample=False, use_cache=use_cache)
    assert torch.equal(before, after)
    assert seen.forwards == 4
    calls = {dropout.name: dropout.calls for dropout in seen.dropouts}
    assert min(calls.values(), default=0) >= 1
    assert all(count % 4 == 0 for site, count in calls.items() if "decoder" in site or name in DECODERS)


def test_steps_that_read_a_cache_are_not_taken_for_one_example() -> None:
    model = language_model("llama")  # without dropout: nothing can vary
    with watch(model) as seen:
        for _ in range(2):
            model.generate(torch.full((1, 3), 5), max_new_tokens=6, do_sample=False)
    assert seen.outputs_varied is False
