"""Text models of Hugging Face: encoders, decoders, both; heads for sequences, tokens, answers and choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from support.architectures.architecture import Architecture, hugging_face

_END = 2  # the token that T5 and BART look for


def _bert(scale: int) -> dict[str, Any]:
    return {
        "hidden_size": 32 * scale,
        "num_hidden_layers": scale,
        "num_attention_heads": 4,
        "intermediate_size": 64 * scale,
        "max_position_embeddings": 136,
    }


def _distilbert(scale: int) -> dict[str, Any]:
    return {"dim": 32 * scale, "n_layers": scale, "n_heads": 4, "hidden_dim": 64 * scale}


def _deberta(scale: int) -> dict[str, Any]:
    return {**_bert(scale), "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}


def _gpt2(scale: int) -> dict[str, Any]:
    return {"n_embd": 32 * scale, "n_layer": scale, "n_head": 4, "n_positions": 136, "bos_token_id": 1}


def _gpt_neo(scale: int) -> dict[str, Any]:
    types = [[["local"], scale]]
    sizes = {"hidden_size": 32 * scale, "num_layers": scale, "num_heads": 4, "intermediate_size": 64 * scale}
    rates = {"resid_dropout": 0.1, "embed_dropout": 0.1, "attention_dropout": 0.1}
    return {**sizes, **rates, "attention_types": types, "window_size": 4, "max_position_embeddings": 136}


def _llama(scale: int) -> dict[str, Any]:
    return {**_bert(scale), "num_key_value_heads": 2, "attention_dropout": 0.1}


def _mixtral(scale: int) -> dict[str, Any]:
    return {**_llama(scale), "num_local_experts": 4, "num_experts_per_tok": 2}


def _opt(scale: int) -> dict[str, Any]:
    rest = {"ffn_dim": 64 * scale, "word_embed_proj_dim": 32 * scale, "attention_dropout": 0.1, "layerdrop": 0.0}
    return {**_bert(scale), **rest}


def _xlnet(scale: int) -> dict[str, Any]:
    return {"d_model": 32 * scale, "n_layer": scale, "n_head": 4, "d_inner": 64 * scale}


def _funnel(scale: int) -> dict[str, Any]:
    sizes = {"d_model": 32 * scale, "n_head": 4, "d_head": 8 * scale, "d_inner": 64 * scale}
    return {**sizes, "block_sizes": [1, scale], "num_decoder_layers": 1}


def _t5(scale: int) -> dict[str, Any]:
    sizes = {"d_model": 32 * scale, "d_kv": 8 * scale, "d_ff": 64 * scale, "num_layers": scale, "num_heads": 4}
    return {**sizes, "decoder_start_token_id": 0, "eos_token_id": _END}


def _bart(scale: int) -> dict[str, Any]:
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder")
             for what, n in (("layers", scale), ("ffn_dim", 64 * scale), ("attention_heads", 4))}  # fmt: skip
    rest = {"d_model": 32 * scale, "max_position_embeddings": 136, "attention_dropout": 0.1, "activation_dropout": 0.1}
    return {**sides, **rest, "eos_token_id": _END, "decoder_start_token_id": _END, "forced_eos_token_id": None}


def texts(examples: int, scale: int) -> dict[str, Tensor]:
    """Each a little shorter than the one before, padded on the right, closed by an end token."""
    length = 9 if scale == 1 else 16 * scale
    ids = torch.randint(3, 60, (examples, length), generator=torch.Generator().manual_seed(6))
    mask = torch.ones_like(ids)
    for row in range(examples):
        keep = max(length - row % (length // 2), 3)
        ids[row, keep:], mask[row, keep:], ids[row, keep - 1] = 0, 0, _END
    return {"input_ids": ids, "attention_mask": mask}


def choices(examples: int, scale: int) -> dict[str, Tensor]:
    """Three texts for each example."""
    return {name: value.unflatten(0, (examples, 3)) for name, value in texts(3 * examples, scale).items()}


def answer(output: Any) -> Tensor:
    """Where an answer starts, as probabilities of the tokens."""
    return output.start_logits.softmax(-1)


def _text(
    name: str,
    family: str,
    fields: Callable[[int], dict[str, Any]],
    shared: str,
    loop: Mapping[str, str] | None = None,
    head: str = "ForSequenceClassification",
    **more: Any,
) -> Architecture:
    """`more` are fields of the config, and of the architecture where it has them."""
    rest = {key: more.pop(key) for key in ("kind", "inputs", "options") if key in more}

    def build(scale: int) -> Any:
        words = {"vocab_size": 60, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": _END}
        return hugging_face(family, head, {**words, **fields(scale), **more})

    rest = {"kind": "text", "inputs": texts, **rest}
    return Architecture(name, model=build, shared=shared, loop=loop or {}, needs="transformers", **rest)


TEXT = (
    _text("bert", "Bert", _bert, "own last attention ffn keys values"),
    _text("bert-eager", "Bert", _bert, "own last attention ffn keys", attn_implementation="eager"),
    _text("bert-tokens", "Bert", _bert, "own last attention keys values", head="ForTokenClassification"),
    _text("bert-answers", "Bert", _bert, "own last attention keys values", head="ForQuestionAnswering", num_labels=2,
          options={"outputs": answer}),
    _text("bert-choices", "Bert", _bert, "own last attention keys values", head="ForMultipleChoice", inputs=choices),
    _text("roberta", "Roberta", _bert, "own last attention ffn keys values"),
    _text("xlm-roberta", "XLMRoberta", _bert, "own last attention ffn keys values"),
    _text("albert", "Albert", _bert, "own last attention ffn keys values", embedding_size=16, hidden_dropout_prob=0.1,
          attention_probs_dropout_prob=0.1),
    _text("electra", "Electra", _bert, "own last attention ffn keys values", embedding_size=16),
    _text("distilbert", "DistilBert", _distilbert, "own last attention ffn keys values"),
    _text("deberta", "Deberta", _deberta, "own last attention ffn keys"),
    _text("deberta-v2", "DebertaV2", _deberta, "own last attention ffn keys"),
    _text("mpnet", "MPNet", _bert, "own last attention ffn keys"),
    _text("modernbert", "ModernBert", _bert, "own last attention ffn keys", attention_dropout=0.1, mlp_dropout=0.1),
    _text("xlnet", "XLNet", _xlnet, "own last attention ffn"),
    _text("fnet", "FNet", _bert, "own last ffn"),
    _text("longformer", "Longformer", _bert, "", dict.fromkeys(("last", "attention"), "data-dependent"),
          attention_window=4),
    _text("funnel", "Funnel", _funnel, "own last attention ffn keys"),
    _text("gpt2", "GPT2", _gpt2, "own last attention ffn keys"),
    _text("gpt-neo", "GPTNeo", _gpt_neo, "own last attention ffn keys"),
    _text("llama", "Llama", _llama, "own last attention ffn keys values"),
    _text("mistral", "Mistral", _llama, "own last attention ffn keys values"),
    _text("qwen2", "Qwen2", _llama, "own last attention ffn keys values"),
    _text("opt", "OPT", _opt, "own last attention ffn keys values"),
    _text("t5", "T5", _t5, "own last attention ffn keys values"),
    _text("bart", "Bart", _bart, "own last attention ffn keys values"),
    _text("mixtral", "Mixtral", _mixtral, "own last attention linear keys values", kind="experts"),
)  # fmt: skip
