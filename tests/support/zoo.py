"""Small models of every kind that Dropscope must handle, each from a factory: fixed weights, eval mode, no download.

See `architectures` for those that people use, each with the engine that runs its placements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """The model with weights that depend on `seed` alone; global random state is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().eval()


def images(count: int = 4, channels: int = 3, size: int = 16) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def volumes(count: int = 3, size: int = 8) -> Tensor:
    return torch.randn(count, 1, size, size, size, generator=torch.Generator().manual_seed(2))


def sequences(count: int = 4, length: int = 5, width: int = 16) -> Tensor:
    return torch.randn(count, length, width, generator=torch.Generator().manual_seed(3))


def vectors(count: int = 4, width: int = 8) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(4))


# --- convolutional networks -------------------------------------------------------------------------------------------


class Cifar(nn.Module):
    """The CIFAR-10 network of the where-to-drop study, narrower: 3 × [conv → ReLU → maxpool] → fc1 → ReLU → fc2.

    Its activations are functions.
    """

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * (size // 8) ** 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.max_pool2d(F.relu(conv(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def cifar() -> nn.Module:
    return seeded(Cifar)


class ResidualBlock(nn.Module):
    """One in-place ReLU for every layer, as torchvision writes it; conv → BN → add → ReLU at the end."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += shortcut
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = ResidualBlock(8, 8)
        self.layer2 = ResidualBlock(8, 16, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(self.avgpool(x).flatten(1))


def resnet() -> nn.Module:
    """BatchNorm statistics as after some training, so that eval and train mode differ."""

    def build() -> nn.Module:
        net = ResNet()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.2, 0.2)
                module.running_var.uniform_(0.5, 1.5)
        return net

    return seeded(build)


class PaddedBlock(nn.Module):
    """A block of the CIFAR ResNets (He et al. 2016): where sizes change, a shortcut without weights.

    `shortcut` is "pad" (option A: every second pixel, zeros for new channels), "cat" (the same, by concatenation) or
    "pool" (ResNet-D: an average, then a projection).
    """

    def __init__(self, inside: int, outside: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.changes, self.kind, self.new = stride != 1 or inside != outside, shortcut, outside - inside
        if self.changes and shortcut == "pool":
            self.pool = nn.Sequential(
                nn.AvgPool2d(2), nn.Conv2d(inside, outside, 1, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (self.shortened(x) if self.changes else x))

    def shortened(self, x: Tensor) -> Tensor:
        if self.kind == "pool":
            return self.pool(x)
        x = x[:, :, ::2, ::2]
        if self.kind == "pad":
            return F.pad(x, (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))
        return torch.cat([x, x.new_zeros(len(x), self.new, *x.shape[2:])], 1)


class CifarResNet(nn.Module):
    """ResNet-20: three groups of `blocks` blocks, the second and third at half the size."""

    def __init__(self, shortcut: str, blocks: int = 3, width: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        for number in (1, 2, 3):
            inside, outside = width * 2 ** max(number - 2, 0), width * 2 ** (number - 1)
            first = PaddedBlock(inside, outside, 1 if number == 1 else 2, shortcut)
            rest = [PaddedBlock(outside, outside, 1, shortcut) for _ in range(blocks - 1)]
            self.add_module(f"layer{number}", nn.Sequential(first, *rest))
        self.fc = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def cifar_resnet(shortcut: str = "pad", blocks: int = 3) -> nn.Module:
    return seeded(lambda: CifarResNet(shortcut, blocks))


class UNet3d(nn.Module):
    """Hand-written: functional activations, concatenated skip, transposed convolution, Dropout3d."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv3d(1, 8, 3, padding=1)
        self.norm1 = nn.InstanceNorm3d(8)
        self.down2 = nn.Conv3d(8, 16, 3, padding=1)
        self.drop = nn.Dropout3d(0.2)
        self.up = nn.ConvTranspose3d(16, 8, 2, stride=2)
        self.join = nn.Conv3d(16, 8, 3, padding=1)
        self.out = nn.Conv3d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.leaky_relu(self.norm1(self.down1(x)))
        deep = self.drop(F.leaky_relu(self.down2(F.max_pool3d(first, 2))))
        joined = torch.cat([first, self.up(deep)], dim=1)
        return self.out(F.leaky_relu(self.join(joined)))


def unet3d() -> nn.Module:
    return seeded(UNet3d)


def monai_unet() -> nn.Module:
    from monai.networks.nets import UNet

    return seeded(
        lambda: UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, dropout=0.2, norm="batch")
    )


# --- recurrent and attention networks ---------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], dropout: float = 0.3) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.rnn = cell(12, 16, num_layers=2, batch_first=True, dropout=dropout)
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.drop(self.rnn(self.embed(tokens))[0][:, -1]))


def recurrent(cell: type[nn.RNNBase] = nn.LSTM) -> nn.Module:
    return seeded(lambda: Recurrent(cell))


def tokens(count: int = 4, length: int = 7, vocabulary: int = 20) -> Tensor:
    return torch.randint(1, vocabulary, (count, length), generator=torch.Generator().manual_seed(5))


class SequenceFirst(nn.Module):
    """nn.TransformerEncoder, by default with positions along dimension 0, under a batch-first interface."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(16, 3)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            return self.fc(self.encoder(x).mean(1))
        return self.fc(self.encoder(x.transpose(0, 1)).mean(0))


def encoder(batch_first: bool) -> nn.Module:
    return seeded(lambda: SequenceFirst(batch_first))


class MultiheadNet(nn.Module):
    """nn.MultiheadAttention that is asked for its maps too; masks are passed on as given."""

    def __init__(self, batch_first: bool = True, dropout: float = 0.4) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=dropout, batch_first=batch_first)
        self.fc = nn.Linear(16, 3)
        self.batch_first = batch_first

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        out, _ = self.attention(x, x, x, **masks)
        return self.fc(out.mean(1 if self.batch_first else 0))


def multihead(batch_first: bool = True, dropout: float = 0.4) -> nn.Module:
    return seeded(lambda: MultiheadNet(batch_first, dropout))


class VisionBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        dropout_p = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p).transpose(1, 2).flatten(2)
        x = x + self.proj(mixed)
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Vision(nn.Module):
    """A small vision transformer: patches, class token, position embedding without an example dimension."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Embedding(17, width)
        self.blocks = nn.Sequential(VisionBlock(width), VisionBlock(width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        x = x + self.position(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x))[:, 0])


def vision() -> nn.Module:
    return seeded(Vision)


class Functional(nn.Module):
    """Nothing but functions: parameters, F.linear, F.conv2d, F.batch_norm, F.dropout that follows the training flag."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.2)
        self.w2 = nn.Parameter(torch.randn(16, 8) * 0.3)
        self.w3 = nn.Parameter(torch.randn(4, 16) * 0.3)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.batch_norm(F.conv2d(x, self.w1), self.mean, self.var, training=self.training))
        x = F.dropout(x.mean((2, 3)), 0.1, self.training)
        x = torch.tanh(F.linear(x, self.w2))
        x = F.dropout(x, p=0.4, training=self.training)
        return F.linear(x, weight=self.w3)


def functional() -> nn.Module:
    return seeded(Functional)


# --- dropouts that torch does not know --------------------------------------------------------------------------------


class StableDropout(nn.Module):
    """As DeBERTa's before transformers 4.47: no nn.Dropout, no F.dropout, a rate called drop_prob."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0:
            return x
        mask = torch.empty_like(x).bernoulli_(self.drop_prob).bool()
        return x.masked_fill(mask, 0) * (1.0 / (1 - self.drop_prob))


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1 - self.drop_prob
        return x * x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(keep) / keep


class SpatialDropout(nn.Module):
    """Whole channels, written by hand under a name that does not say so."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty(*x.shape[:2], *[1] * (x.dim() - 2)).bernoulli_(1 - self.p) / (1 - self.p)


class SkipsLayers(nn.Module):
    """LayerDrop as Wav2Vec2 writes it: a draw per layer in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.drop, self.layerdrop = nn.Dropout(0.1), 0.9

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            skipped = torch.rand(()) < self.layerdrop  # drawn in eval too
            if not (self.training and skipped):
                x = x + self.drop(F.relu(layer(x)))
        return x


# --- Hugging Face families --------------------------------------------------------------------------------------------

_ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_WORDS = {"vocab_size": 60, "num_labels": 3, "pad_token_id": 0}
_NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64, "window_size": 4}
_NEO_ATTENTION = {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 40}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {**_WORDS, **_ENCODER}),
    "roberta": ("Roberta", {**_WORDS, **_ENCODER, "max_position_embeddings": 40}),
    "electra": ("Electra", {**_WORDS, **_ENCODER, "embedding_size": 16}),
    "albert": ("Albert", {**_WORDS, **_ENCODER, "embedding_size": 16}),
    "distilbert": ("DistilBert", {**_WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "deberta": ("Deberta", {**_WORDS, **_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "deberta-v2": ("DebertaV2", {**_WORDS, **_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "gpt2": ("GPT2", {**_WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40, **_ENDS}),
    "gpt-neo": ("GPTNeo", {**_WORDS, **_NEO, **_NEO_ATTENTION, **_ENDS}),
}
DECODERS = ("gpt2", "gpt-neo")
EAGER_ONLY = ("deberta", "deberta-v2", "gpt-neo")
BACKENDS = [(family, "eager") for family in FAMILIES] + [(f, "sdpa") for f in FAMILIES if f not in EAGER_ONLY]
# What gives every family dropout everywhere, where its defaults leave some of it at 0.
DROPPING: dict[str, dict[str, float]] = {
    "albert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "gpt-neo": {"resid_dropout": 0.1, "embed_dropout": 0.1, "attention_dropout": 0.1},
}


def hugging_face(family: str, attention: str = "eager", **config: Any) -> nn.Module:
    """A sequence classifier of one family; its random weights are large, so that outputs differ beyond rounding."""
    import transformers

    name, fields = FAMILIES[family]
    settings = getattr(transformers, f"{name}Config")(**{**fields, **config})
    settings._attn_implementation = attention

    def build() -> nn.Module:
        model = getattr(transformers, f"{name}ForSequenceClassification")(settings)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.2)
        return model

    return seeded(build)


def text(count: int = 4, length: int = 9, padded: bool = True) -> dict[str, Tensor]:
    """Token ids and an attention mask; example i is i tokens shorter than the first, padded on the right."""
    ids = torch.randint(3, 60, (count, length), generator=torch.Generator().manual_seed(6))
    mask = torch.ones_like(ids)
    for i in range(count if padded else 0):
        keep = max(length - i, 3)
        ids[i, keep:], mask[i, keep:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


class Deaf(nn.Module):
    """Its answer does not depend on `unused`."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.fc = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.unused(x)
        return self.fc(x)
