"""Tiny language models: two decoders, and two with an encoder."""

from __future__ import annotations

from typing import Any

import torch

DECODERS, TWO_PARTS = ("gpt2", "llama"), ("t5", "bart")
_SPECIAL: dict[str, Any] = {"vocab_size": 30, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


def language_model(name: str) -> Any:
    """A model with random weights, in eval mode, that never ends a sequence."""
    import transformers as tf

    torch.manual_seed(0)
    if name == "gpt2":
        sizes = {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
        return tf.GPT2LMHeadModel(tf.GPT2Config(**sizes, **_SPECIAL)).eval()
    if name == "llama":
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        return tf.LlamaForCausalLM(tf.LlamaConfig(**sizes, **_SPECIAL)).eval()
    if name == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
        return tf.T5ForConditionalGeneration(tf.T5Config(**sizes, **_SPECIAL)).eval()
    sizes = {"d_model": 16, "max_position_embeddings": 32, "decoder_start_token_id": 2}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": 1, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 24}
    settings = tf.BartConfig(forced_eos_token_id=None, **sizes, **_SPECIAL)
    return tf.BartForConditionalGeneration(settings).eval()


def prompts(count: int = 3, length: int = 5) -> torch.Tensor:
    """Tokens `[count, length]` without special ones."""
    return torch.randint(3, 30, (count, length), generator=torch.Generator().manual_seed(1))
