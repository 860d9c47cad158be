"""Sound, tables, volumes, recurrent networks, mixtures of experts and torch's own attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from support import zoo
from support.architectures.architecture import Architecture, hugging_face

# --- sound ------------------------------------------------------------------------------------------------------------


def waves(examples: int, scale: int) -> Tensor:
    return torch.randn(examples, 400 if scale == 1 else 2000, generator=torch.Generator().manual_seed(7))


def mel_frames(examples: int, scale: int) -> Tensor:
    """Frames in the second place, as AST takes them."""
    return torch.randn(examples, 32 if scale == 1 else 96, 16, generator=torch.Generator().manual_seed(8))


def mel_features(examples: int, scale: int) -> Tensor:
    """Frames in the last place, as Whisper takes them."""
    return mel_frames(examples, scale).transpose(1, 2).contiguous()


def _wav2vec2(family: str, scale: int) -> nn.Module:
    sizes = {"hidden_size": 32 * scale, "num_hidden_layers": scale, "num_attention_heads": 4, "num_labels": 3}
    convs = {"conv_dim": [16 * scale] * 2, "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16 * scale}
    still = {"layerdrop": 0.0, "apply_spec_augment": False}  # drawn from NumPy, and a choice of layers: no sites
    return hugging_face(
        family,
        "ForSequenceClassification",
        {**sizes, **convs, **positions, **still, "intermediate_size": 64 * scale, "activation_dropout": 0.1},
    )


def _whisper(scale: int) -> nn.Module:
    frames = 16 if scale == 1 else 48
    sides = {f"{side}_{what}": n for side in ("encoder", "decoder")
             for what, n in (("layers", scale), ("ffn_dim", 64 * scale), ("attention_heads", 4))}  # fmt: skip
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
    rest = {"d_model": 32 * scale, "num_mel_bins": 16, "max_source_positions": frames, "classifier_proj_size": 16}
    words = {"vocab_size": 60, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    words |= {"decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None}
    return hugging_face("Whisper", "ForAudioClassification", {**sides, **rates, **rest, **words})


def _ast(scale: int) -> nn.Module:
    sizes = {"hidden_size": 32 * scale, "num_hidden_layers": scale, "num_attention_heads": 4, "num_labels": 3}
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    patches = {"patch_size": 8, "frequency_stride": 8, "time_stride": 8, "num_mel_bins": 16}
    length = 32 if scale == 1 else 96
    return hugging_face(
        "AST", "ForAudioClassification",
        {**sizes, **rates, **patches, "intermediate_size": 64 * scale, "max_length": length},
    )  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------------------------


def columns(examples: int, scale: int) -> dict[str, Tensor]:
    """Numbers and codes, as a model of a table takes them."""
    draw = torch.Generator().manual_seed(9)
    codes = torch.randint(0, 7, (examples, 3), generator=draw)
    return {"numbers": torch.randn(examples, 6, generator=draw), "codes": codes}


class TableMLP(nn.Module):
    """An embedding for every column of codes, beside the numbers; then linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(7, width // 4) for _ in range(3))
        self.fc1, self.fc2 = nn.Linear(6 + 3 * (width // 4), 4 * width), nn.Linear(4 * width, 2 * width)
        self.norm, self.drop, self.act = nn.BatchNorm1d(4 * width), nn.Dropout(0.2), nn.SiLU()
        self.out = nn.Linear(2 * width, 3)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        parts = [embed(codes[:, i]) for i, embed in enumerate(self.embeddings)]
        x = self.drop(self.act(self.norm(self.fc1(torch.cat([numbers, *parts], 1)))))
        return self.out(self.drop(self.act(self.fc2(x))))


class FeatureTokens(nn.Module):
    """FT-Transformer (Gorishniy et al. 2021): every column a token, a class token before them, pre-norm blocks."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, width)), nn.Parameter(torch.randn(6, width))
        self.embedding = nn.Embedding(21, width)
        self.register_buffer("offsets", torch.tensor([0, 7, 14]))
        self.cls = nn.Parameter(torch.randn(width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.2, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        tokens = [numbers.unsqueeze(-1) * self.weight + self.bias, self.embedding(codes + self.offsets)]
        first = self.cls.expand(len(numbers), 1, -1)
        return self.head(self.norm(self.encoder(torch.cat([first, *tokens], 1))[:, 0]).relu())


class TableResNet(nn.Module):
    """The residual network for tables of the same paper."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Linear(9, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.2),
                          nn.Linear(2 * width, width), nn.Dropout(0.1))
            for _ in range(blocks)
        )  # fmt: skip
        self.head = nn.Linear(width, 3)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        x = self.first(torch.cat([numbers, codes.float()], 1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.relu())


# --- volumes ----------------------------------------------------------------------------------------------------------


def volumes(examples: int, scale: int) -> Tensor:
    size = 16 if scale == 1 else 32
    return torch.randn(min(examples, 8), 1, size, size, size, generator=torch.Generator().manual_seed(2))


def _unet(scale: int) -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(3, 1, 2, (4 * scale, 8 * scale, 16 * scale), (2, 2), num_res_units=1, dropout=0.2, norm="batch")


def _segresnet(scale: int) -> nn.Module:
    from monai.networks.nets import SegResNet

    return SegResNet(3, 4 * scale, 1, 2, dropout_prob=0.2, norm=("GROUP", {"num_groups": 2}),
                     blocks_down=(1, 1, scale), blocks_up=(1, 1))  # fmt: skip


def _attention_unet(scale: int) -> nn.Module:
    from monai.networks.nets import AttentionUnet

    return AttentionUnet(3, 1, 2, (4 * scale, 8 * scale), (2,), dropout=0.2)


class PatchVolume(nn.Module):
    """As UNETR (Hatamizadeh et al. 2022): patches of a volume through a transformer, then back to every voxel."""

    def __init__(self, width: int, layers: int, size: int) -> None:
        super().__init__()
        self.skip, self.patch = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(1, width, 8, 8)
        self.position = nn.Parameter(torch.randn(1, (size // 8) ** 3, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.2, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.up, self.out = nn.ConvTranspose3d(width, 4, 8, 8), nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x)
        mixed = self.encoder(patches.flatten(2).transpose(1, 2) + self.position)
        deep = self.up(mixed.transpose(1, 2).reshape(patches.shape))
        return self.out(torch.cat([self.skip(x).relu(), deep.relu()], 1))


# --- recurrent networks, experts, attention ---------------------------------------------------------------------------


def tokens(examples: int, scale: int) -> Tensor:
    return torch.randint(1, 20, (examples, 7 * scale), generator=torch.Generator().manual_seed(5))


class Recurrent(nn.Module):
    """The last state of a recurrent network, to classes."""

    def __init__(self, cell: type[nn.RNNBase], width: int, **more: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.rnn = cell(width, width, batch_first=True, **more)
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(width * (1 + more.get("bidirectional", 0)), 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.drop(self.rnn(self.embed(tokens))[0][:, -1]))


class Experts(nn.Module):
    """A soft mixture: a gate weighs the experts of every example."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, 8)) for _ in range(4)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        mixed = torch.stack([expert(x) for expert in self.experts], -1) * weights.unsqueeze(1)
        return self.head(x + mixed.sum(-1))


def vectors(examples: int, scale: int) -> Tensor:
    return torch.randn(examples, 8, generator=torch.Generator().manual_seed(4))


def sequences(examples: int, scale: int) -> Tensor:
    return torch.randn(examples, 5 * scale, 16, generator=torch.Generator().manual_seed(3))


def masked_sequences(examples: int, scale: int) -> dict[str, Tensor]:
    """Sequences, and True where there is padding."""
    x = sequences(examples, scale)
    padding = torch.arange(x.shape[1]) >= x.shape[1] - torch.arange(examples).unsqueeze(1) % 3
    return {"x": x, "padding": padding}


class Translator(nn.Module):
    """`nn.Transformer`: both sides, a causal mask and a padding mask."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lift = nn.Linear(16, width)
        self.both = nn.Transformer(width, 4, layers, layers, 2 * width, 0.2, batch_first=True)
        self.both.encoder.use_nested_tensor = False  # torch warns that they are a prototype
        self.fc = nn.Linear(width, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.lift(x)
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device, x.dtype)
        out = self.both(x, x, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding)
        return self.fc(out[:, -1])


class MaskedAttention(nn.Module):
    """`nn.MultiheadAttention` with a padding mask, whose maps nobody asks for."""

    def __init__(self, width: int, **more: Any) -> None:
        super().__init__()
        self.lift = nn.Linear(16, width)
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.2, batch_first=True, **more)
        self.fc = nn.Linear(width, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.lift(x)
        return self.fc(self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0].mean(1))


class SequenceFirst(nn.Module):
    """`nn.TransformerEncoder` with positions along dimension 0."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lift = nn.Linear(16, width)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.2), layers, enable_nested_tensor=False
        )
        self.fc = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.lift(x).transpose(0, 1)).mean(0))


def _sound(name: str, model: Any, inputs: Any) -> Architecture:
    return Architecture(name, "audio", model, inputs, "own last attention ffn keys values", needs="transformers")


def _table(name: str, model: Any, shared: str) -> Architecture:
    return Architecture(name, "tabular", model, columns, shared)


def _volume(name: str, model: Any, shared: str = "own last conv", needs: str = "monai") -> Architecture:
    return Architecture(name, "volume", model, volumes, shared, needs=needs)


def _recurrent(name: str, cell: type[nn.RNNBase], **more: Any) -> Architecture:
    return Architecture(
        name, "recurrent", lambda scale: Recurrent(cell, 16 * scale, **more), tokens, "own last rnn embed"
    )


def _attention(name: str, model: Any, inputs: Any, shared: str) -> Architecture:
    return Architecture(name, "attention", model, inputs, shared)


OTHERS = (
    _sound("wav2vec2", lambda scale: _wav2vec2("Wav2Vec2", scale), waves),
    _sound("hubert", lambda scale: _wav2vec2("Hubert", scale), waves),
    _sound("whisper", _whisper, mel_features),
    _sound("ast", _ast, mel_frames),
    _table("table-mlp", lambda scale: TableMLP(16 * scale), "own last all fc1"),
    _table("table-resnet", lambda scale: TableResNet(16 * scale, scale), "own last all first"),
    _table("ft-transformer", lambda scale: FeatureTokens(16 * scale, scale), "own last attention ffn"),
    _volume("unet-3d", lambda scale: zoo.UNet3d(), "own last conv down1", "torch"),
    _volume("patch-volume", lambda scale: PatchVolume(16 * scale, scale, 16 * min(scale, 2)), "own last attention ffn",
            "torch"),
    _volume("monai-unet", _unet),
    _volume("monai-attention-unet", _attention_unet),
    _volume("monai-segresnet", _segresnet),
    _recurrent("lstm", nn.LSTM, num_layers=2),
    _recurrent("gru", nn.GRU, bidirectional=True),
    Architecture("soft-experts", "experts", lambda scale: Experts(16 * scale), vectors, "own last all gate"),
    _attention("nn-transformer", lambda scale: Translator(16 * scale, scale), masked_sequences,
               "own last attention ffn"),
    _attention("nn-multihead", lambda scale: MaskedAttention(16 * scale), masked_sequences, "own last lift"),
    _attention("nn-multihead-bias", lambda scale: MaskedAttention(16 * scale, add_bias_kv=True), masked_sequences,
               "own last lift"),
    _attention("sequence-first", lambda scale: SequenceFirst(16 * scale, scale), sequences, "own last attention ffn"),
)  # fmt: skip
