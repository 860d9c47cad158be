"""Random draws of train mode: each is a site or named as out of reach, and global random state stays as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dropscope as ds
from conftest import Untouched
from dropscope.injection.sites import SiteMap, examine
from dropscope.model.inputs import Call
from support import zoo

_BOTH = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()
}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_ENCODER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
_WORDS = {"vocab_size": 30, "max_position_embeddings": 40}
_SPEECH = {
    **_ENCODER, "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, "vocab_size": 20,
}  # fmt: skip


def built(family: str, of: str, **config: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    settings = getattr(transformers, f"{family}Config")(**config)
    model: nn.Module = zoo.seeded(lambda: getattr(transformers, f"{family}{of}")(settings)).eval()
    return model


def texts() -> dict[str, Tensor]:
    words = torch.arange(3, 19).repeat(2, 1)
    words[:, -1] = 2
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def mapped(model: nn.Module, example: Any) -> SiteMap:
    return examine(model, Call.of(example))


# --- what is named ----------------------------------------------------------------------------------------------------


def test_layerdrop_is_named_where_it_is_drawn() -> None:
    rates = {"encoder_layerdrop": 0.1, "decoder_layerdrop": 0.0}
    bart = built("Bart", "ForSequenceClassification", d_model=16, **_BOTH, **_WORDS, **_ENDS, **rates)
    assert mapped(bart, texts()).unreachable == (
        "model.encoder: LayerDrop of rate 0.1",
        "model.decoder: a draw for LayerDrop of rate 0, which drops nothing",
    )


@pytest.mark.parametrize(
    ("rate", "text"), [(0.2, "LayerDrop of rate 0.2"), (0.0, "a draw for LayerDrop of rate 0, which drops nothing")]
)
def test_layerdrop_of_opt_and_whisper(rate: float, text: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "ffn_dim": 16, "num_attention_heads": 2}
    opt = built("OPT", "Model", **sizes, **_WORDS, word_embed_proj_dim=16, layerdrop=rate)
    assert mapped(opt, texts()).unreachable == (f"decoder: {text}",)
    sound = {"d_model": 16, "num_mel_bins": 8, "max_source_positions": 20, "vocab_size": 30}
    whisper = built("Whisper", "ForAudioClassification", **_BOTH, **_ENDS, **sound, encoder_layerdrop=rate)
    assert mapped(whisper, {"input_features": torch.ones(2, 8, 40)}).unreachable == (f"encoder: {text}",)


def test_dropout_of_chunked_attention_is_named_beside_the_one_that_is_reached() -> None:
    net = built("Longformer", "Model", **_ENCODER, **_WORDS, attention_window=8)
    words = {**texts(), "global_attention_mask": torch.zeros(2, 16, dtype=torch.long)}
    words["global_attention_mask"][:, 0] = 1
    found = mapped(net, words)
    (text,) = found.unreachable
    assert text.startswith("encoder.layer.0.attention.self: a dropout of rate 0.1 on attention weights")
    assert sum(point.name == "encoder.layer.0.attention.self" for point in found.own) == 1


def test_drop_connect_is_named_with_its_rate() -> None:
    nets = pytest.importorskip("monai.networks.nets")
    blocks = ["r2_k3_s11_e1_i32_o16_se0.25"]
    net = nets.EfficientNet(blocks, spatial_dims=2, in_channels=3, num_classes=3, drop_connect_rate=0.2)
    assert mapped(net, torch.ones(2, 3, 16, 16)).unreachable == ("_blocks.0.1: drop connect of rate 0.1",)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("Bert", {**_ENCODER, **_WORDS}),
        ("GPT2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 30, "n_positions": 40}),
    ],
)
def test_text_models_whose_dropouts_are_all_reached_have_nothing_to_name(family: str, config: dict[str, Any]) -> None:
    assert mapped(built(family, "Model", **config), texts()).unreachable == ()


def test_image_models_whose_dropouts_are_all_reached_have_nothing_to_name() -> None:
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    vit = built("ViT", "Model", **_ENCODER, **rates, image_size=16, patch_size=8)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}
    for model, size in ((vit, 16), (built("ResNet", "Model", **sizes), 32)):
        assert mapped(model, {"pixel_values": torch.ones(2, 3, size, size)}).unreachable == ()


class Jittered(nn.Module):
    """Draws from every global generator, each in a module of its own; what it draws changes nothing in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.python, self.numpy, self.torch = Jitter("python"), Jitter("numpy"), Jitter("torch")
        self.fc, self.drop, self.head = nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.fc(self.torch(self.numpy(self.python(x)))).relu()))


class Jitter(nn.Module):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        drawn = {
            "python": lambda: x + random.gauss(0, 1),
            "numpy": lambda: x + float(np.random.normal()),  # noqa: NPY002 - the global state is meant
            "torch": lambda: x * torch.empty_like(x).bernoulli_(0.5),
        }[self.source]()
        return drawn if self.training else x


def test_draws_of_every_generator_are_named_with_their_module() -> None:
    assert set(mapped(zoo.seeded(Jittered), zoo.vectors()).unreachable) == {
        "python: random numbers from Python's random in train mode",
        "numpy: random numbers from numpy.random in train mode",
        "torch: random numbers from torch's bernoulli in train mode",
    }


# --- global random state ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "auto"])
def test_a_model_that_draws_in_eval_leaves_every_global_random_state(engine: str, untouched: Untouched) -> None:
    net, x = zoo.seeded(Jittered), zoo.vectors()
    with untouched(net):
        ds.sample(net, "own", x, passes=2, engine=engine)
        ds.uncertainty(net, "own", x, passes=2, engine=engine)
        ds.sweep(net, ["own"], (x, torch.zeros(len(x), dtype=torch.long)), passes=2, engine=engine)


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert"])
def test_speech_models_leave_every_global_random_state(family: str, untouched: Untouched) -> None:
    net, sound = built(family, "ForSequenceClassification", **_SPEECH).train(), {"input_values": torch.randn(2, 1200)}
    with untouched(net):
        ds.find_sites(net, sound)
        assert "config: SpecAugment of rate 0.05" in mapped(net, sound).unreachable
        ds.audit(net, "own", sound)
        ds.sample(net, "own", sound, passes=2)
