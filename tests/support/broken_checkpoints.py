"""Checkpoints that are broken, one way each: headers, configs, tokenizers and weights that must become one clear line.

See `checkpoint_fuzz` for random ones, and for trying them with little memory and little time.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Breakage = Callable[[Path], None]

_DEEP = 100_000


def make_checkpoint(folder: Path, **config: Any) -> Path:
    """A sound one: a classifier of two layers with a tokenizer of whole words."""
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "film", "awful"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"vocab_size": len(words), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    fields = {**sizes, "intermediate_size": 16, "max_position_embeddings": 64, **config}
    transformers.BertForSequenceClassification(transformers.BertConfig(**fields)).save_pretrained(folder)
    return folder


# --- ways to break a file ---------------------------------------------------------------------------------------------


def text(name: str, content: str | bytes) -> Breakage:
    """The file holds this."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: write_bytes(folder / name, data)


def fields(name: str, **changed: Any) -> Breakage:
    """A JSON file with other values; None removes nothing, it is written as null."""
    return lambda folder: write_bytes(folder / name, json.dumps({**read_json(folder / name), **changed}).encode())


def gone(*names: str) -> Breakage:
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names] and None


def header(change: Callable[[dict[str, Any]], Any]) -> Breakage:
    """A safetensors file whose header is changed, its length field fitting."""

    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        head, rest = _split(path)
        changed = change(head)
        written = changed if isinstance(changed, bytes) else json.dumps(head if changed is None else changed).encode()
        write_bytes(path, struct.pack("<Q", len(written)) + written + rest)

    return apply


def raw(change: Callable[[bytes], bytes]) -> Breakage:
    """A safetensors file with other bytes."""
    return lambda folder: write_bytes(folder / "model.safetensors", change((folder / "model.safetensors").read_bytes()))


def entry(**changed: Any) -> Breakage:
    """The first tensor of the header described otherwise."""
    return header(lambda head: head[_first(head)].update(changed))


def _first(head: dict[str, Any]) -> str:
    return next(name for name in head if name != "__metadata__")


def _second(head: dict[str, Any]) -> str:
    return [name for name in head if name != "__metadata__"][1]


def _overlap(head: dict[str, Any]) -> None:
    head[_second(head)]["data_offsets"] = head[_first(head)]["data_offsets"]
    head[_second(head)]["shape"] = head[_first(head)]["shape"]


def _twice(head: dict[str, Any]) -> bytes:
    name = _first(head)
    return (json.dumps(head)[:-1] + f", {json.dumps(name)}: {json.dumps(head[name])}}}").encode()


def _split(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def write_bytes(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


class _Runs:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def pickled(folder: Path) -> None:
    gone("model.safetensors")(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs(folder / "code-ran")))


def sharded(index: Any) -> Breakage:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        written = index if isinstance(index, str) else json.dumps(index)
        (folder / "model.safetensors.index.json").write_text(written)

    return apply


def of_another_family(folder: Path) -> None:
    """Weights of GPT-2 under a config of BERT."""
    import transformers

    sizes = {"vocab_size": 9, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "pad_token_id": 0}
    config = (folder / "config.json").read_bytes()
    transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**sizes)).save_pretrained(folder)
    write_bytes(folder / "config.json", config)


_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
          "max_position_embeddings", "type_vocab_size")  # fmt: skip
_WRONG = {"text": "many", "list": [1, 2], "null": None, "float": 2.5, "negative": -2, "zero": 0, "object": {},
          "large": 10**7, "huge": 10**12, "larger than 64 bits": 10**30}  # fmt: skip

BROKEN: dict[str, Breakage] = {
    "config: absent": gone("config.json"),
    "config: empty": text("config.json", ""),
    "config: not JSON": text("config.json", "{'model_type': bert}"),
    "config: cut off": text("config.json", '{"model_type": "bert", "hidden_size": 1'),
    "config: a list": text("config.json", '["bert"]'),
    "config: a number": text("config.json", "3"),
    "config: null": text("config.json", "null"),
    "config: not UTF-8": text("config.json", b'{"model_type": "\xff\xfe"}'),
    "config: deep": text("config.json", "[" * _DEEP),
    "config: deep object": text("config.json", '{"a":' * _DEEP + "1" + "}" * _DEEP),
    "config: NUL bytes": text("config.json", b"\0" * 100),
    "config: a folder": lambda folder: gone("config.json")(folder) or (folder / "config.json").mkdir(),
    "config: no model_type": lambda folder: write_bytes(
        folder / "config.json",
        json.dumps({k: v for k, v in read_json(folder / "config.json").items() if k != "model_type"}).encode(),
    ),
    "config: unknown model_type": fields("config.json", model_type="no-such-family"),
    "config: misspelt model_type": fields("config.json", model_type="brt"),
    "config: model_type a number": fields("config.json", model_type=3),
    "config: model_type a list": fields("config.json", model_type=["bert"]),
    "config: family without a classifier": fields("config.json", model_type="clip"),
    "config: num_labels huge": fields("config.json", id2label=None, num_labels=10**12),
    "config: num_labels negative": fields("config.json", id2label=None, num_labels=-3),
    "config: id2label a text": fields("config.json", id2label="yes"),
    "config: id2label of words": fields("config.json", id2label={"yes": 1}),
    "config: heads do not divide": fields("config.json", num_attention_heads=3),
    "config: activation unknown": fields("config.json", hidden_act="no-such"),
    "config: dropout a text": fields("config.json", hidden_dropout_prob="a lot"),
    "config: dropout of NaN": fields("config.json", hidden_dropout_prob=float("nan")),
    "config: dropout of 7": fields("config.json", hidden_dropout_prob=7.0),
    "config: dtype unknown": fields("config.json", dtype="no-such", torch_dtype="no-such"),
    "config: code of its own": fields("config.json", auto_map={"AutoConfig": "evil.Config"}, model_type="evil"),
    "config: a kernel from the Hub": fields("config.json", attn_implementation="somebody/kernel"),
    "config: attention unknown": fields("config.json", attn_implementation="no-such"),
    "config: another hidden_size": fields("config.json", hidden_size=32),
    "config: another vocab_size": fields("config.json", vocab_size=50),
    "config: more layers": fields("config.json", num_hidden_layers=5),
    "config: another family": fields("config.json", model_type="roberta"),
    "config: experts without end": fields(
        "config.json", model_type="mixtral", num_local_experts=10**6, num_key_value_heads=2
    ),
    "config: layers of another family": fields("config.json", model_type="gpt2", n_layer=10**6),
    "config: sinusoids without end": fields(
        "config.json", model_type="distilbert", sinusoidal_pos_embds=True, max_position_embeddings=10**6, dim=10**6
    ),
    **{
        f"config: {field} {kind}": fields("config.json", **{field: value})
        for field in _SIZES
        for kind, value in _WRONG.items()
    },
    "weights: absent": gone("model.safetensors"),
    "weights: empty": text("model.safetensors", b""),
    "weights: a text": text("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
    "weights: a pickle with code": pickled,
    "weights: a folder": lambda folder: gone("model.safetensors")(folder) or (folder / "model.safetensors").mkdir(),
    "weights: of another family": of_another_family,
    "weights: seven bytes": raw(lambda data: data[:7]),
    "weights: header length of 2**63": raw(lambda data: struct.pack("<Q", 1 << 63) + data[8:]),
    "weights: header length of 2**64 - 1": raw(lambda data: b"\xff" * 8 + data[8:]),
    "weights: header length of 0": raw(lambda data: bytes(8) + data[8:]),
    "weights: header length of 99 MB": raw(lambda data: struct.pack("<Q", 99_000_000) + data[8:]),
    "weights: header cut off": raw(lambda data: data[:200]),
    "weights: tensors cut off": raw(lambda data: data[:-100]),
    "weights: bytes left over": raw(lambda data: data + bytes(100)),
    "weights: header not JSON": header(lambda head: b"{'a': 1}" + b" " * 8),
    "weights: header not UTF-8": header(lambda head: b'{"\xff": 1}'),
    "weights: header a list": header(lambda head: b"[1, 2]"),
    "weights: header deep": header(lambda head: b"[" * _DEEP),
    "weights: header deep object": header(lambda head: b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
    "weights: no tensors": lambda folder: write_bytes(folder / "model.safetensors", struct.pack("<Q", 2) + b"{}"),
    "weights: overlapping": header(_overlap),
    "weights: a name twice": header(_twice),
    "weights: dtype unknown": entry(dtype="F99"),
    "weights: dtype a number": entry(dtype=3),
    "weights: dtype of another size": entry(dtype="F64"),
    "weights: shape negative": entry(shape=[-1, 16]),
    "weights: shape of floats": entry(shape=[1.5, 2]),
    "weights: shape huge": entry(shape=[1 << 40, 1 << 40]),
    "weights: shape of 2**63": entry(shape=[1 << 63]),
    "weights: shape a text": entry(shape="16"),
    "weights: offsets backwards": entry(data_offsets=[64, 0]),
    "weights: offsets negative": entry(data_offsets=[-64, 0]),
    "weights: offsets beyond the file": entry(data_offsets=[0, 1 << 50]),
    "weights: offsets absent": header(lambda head: head[_first(head)].pop("data_offsets") and None),
    "weights: an entry that is a number": header(lambda head: head.update({_first(head): 3})),
    "weights: metadata a number": header(lambda head: head.update(__metadata__=3)),
    "weights: metadata of numbers": header(lambda head: head.update(__metadata__={"format": 3})),
    "shards: index not JSON": sharded("{"),
    "shards: index a list": sharded([]),
    "shards: index without a map": sharded({"metadata": {}}),
    "shards: map a list": sharded({"weight_map": ["a"]}),
    "shards: map of numbers": sharded({"weight_map": {"classifier.weight": 3}}),
    "shards: a file that is absent": sharded({"weight_map": {"classifier.weight": "model-00009.safetensors"}}),
    "shards: a file elsewhere": sharded({"weight_map": {"classifier.weight": "../../etc/passwd"}}),
    "shards: a pickle": sharded({"weight_map": {"classifier.weight": "pytorch_model.bin"}}),
}  # fmt: skip

# These are read only where texts are tokenised.
BROKEN_TOKENIZERS: dict[str, Breakage] = {
    "tokenizer: absent": gone("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"),
    "tokenizer: empty": text("tokenizer.json", ""),
    "tokenizer: not JSON": text("tokenizer.json", "{"),
    "tokenizer: a list": text("tokenizer.json", "[]"),
    "tokenizer: an empty object": text("tokenizer.json", "{}"),
    "tokenizer: not UTF-8": text("tokenizer.json", b'{"version": "\xff"}'),
    "tokenizer: deep": text("tokenizer.json", "[" * _DEEP),
    "tokenizer: deep object": text("tokenizer.json", '{"a":' * _DEEP + "1" + "}" * _DEEP),
    "tokenizer: model a number": fields("tokenizer.json", model=3),
    "tokenizer: model unknown": fields("tokenizer.json", model={"type": "no-such"}),
    "tokenizer: vocabulary of words": fields("tokenizer.json", model={"type": "WordPiece", "vocab": {"a": "b"}}),
    "tokenizer: vocabulary empty": fields(
        "tokenizer.json", added_tokens=[], model={"type": "WordPiece", "unk_token": "[UNK]", "vocab": {},
                                                  "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    ),
    "tokenizer: added tokens a text": fields("tokenizer.json", added_tokens="[PAD]"),
    "tokenizer: truncation a text": fields("tokenizer.json", truncation="no"),
    "tokenizer: normaliser unknown": fields("tokenizer.json", normalizer={"type": "no-such"}),
    "tokenizer: regex without end": fields(
        "tokenizer.json",
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False},
    ),
    "tokenizer: config not JSON": text("tokenizer_config.json", "{"),
    "tokenizer: config a list": text("tokenizer_config.json", "[]"),
    "tokenizer: config deep": text("tokenizer_config.json", "[" * _DEEP),
    "tokenizer: class a number": fields("tokenizer_config.json", tokenizer_class=3),
    "tokenizer: class of another family": fields("tokenizer_config.json", tokenizer_class="T5Tokenizer"),
    "tokenizer: padding token a number": fields("tokenizer_config.json", pad_token=3),
    "tokenizer: padding token a list": fields("tokenizer_config.json", pad_token=["[PAD]"]),
    "tokenizer: padding token new": fields("tokenizer_config.json", pad_token="[NEW]"),
    "tokenizer: longest a text": fields("tokenizer_config.json", model_max_length="many"),
    "tokenizer: longest negative": fields("tokenizer_config.json", model_max_length=-5),
    "tokenizer: side unknown": fields("tokenizer_config.json", padding_side="top"),
    "tokenizer: added tokens wrong": fields("tokenizer_config.json", added_tokens_decoder={"x": 3}),
    "tokenizer: special tokens a list": text("special_tokens_map.json", "[]"),
    "tokenizer: more words than the model": fields("config.json", vocab_size=5),
}  # fmt: skip
