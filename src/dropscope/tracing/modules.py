"""Kinds of modules and functions: layer, activation, norm, dropout, join. One table for every visitor.

Owns names and classes only; it follows no data and changes nothing. See `tracer` for what a value means in a forward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

ROOT = "root"  # the model's own name, where a value of its own forward needs one
LAYERS = ("conv", "linear", "recurrent", "embedding")
HOMOGENEOUS = frozenset({"relu", "relu_", "leaky_relu", "leaky_relu_", "prelu"})
ACTIVATIONS = HOMOGENEOUS | frozenset(
    {"relu6", "elu", "elu_", "selu", "selu_", "celu", "celu_", "gelu", "silu", "mish", "hardswish", "hardsigmoid"}
    | {"hardtanh", "hardtanh_", "softplus", "softsign", "tanh", "tanh_", "sigmoid", "sigmoid_", "logsigmoid", "rrelu"}
)
NORMS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"})
DROPOUTS = {
    "dropout": "element", "dropout_": "element", "alpha_dropout": "element", "alpha_dropout_": "element",
    "dropout1d": "channel", "dropout2d": "channel", "dropout3d": "channel",
    "feature_dropout": "channel", "feature_dropout_": "channel",
    "feature_alpha_dropout": "channel", "feature_alpha_dropout_": "channel",
}  # fmt: skip
ADDS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})
LINEARS = frozenset(
    {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)
# The same values in another form: everything known of the input holds for the output.
TRANSPARENT = frozenset(
    {"contiguous", "to", "type", "type_as", "clone", "float", "half", "bfloat16", "detach", "nan_to_num"}
)
# Values rearranged or rescaled: still attention weights, still an activated hidden layer, no longer a layer's output.
ELEMENTWISE = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "masked_fill", "masked_fill_", "expand"})
RESHAPED = ELEMENTWISE | frozenset(
    {"view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "swapaxes", "movedim"}
)
SPLITS = frozenset({"chunk", "split"})  # the halves of a gated feed-forward layer
# What a residual block may do to its shortcut instead of a projection, to fit other sizes.
SHORTCUTS = frozenset(
    {"__getitem__", "pad", "cat", "concat", "concatenate", "interpolate"}
    | {f"{kind}_pool{rank}d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for rank in (1, 2, 3)}
)
# These ask about a tensor, not about its content, and return no tensor.
QUESTIONS = frozenset({"size", "dim", "stride", "numel", "is_contiguous", "is_floating_point", "is_complex", "__len__"})
_DROPOUT_CLASS = re.compile(r"Dropout|DropPath|StochasticDepth")
_DROPOUT_RATE_FIELDS = ("p", "drop_prob", "drop_rate", "rate")


def layer_kind(module: nn.Module) -> str | None:
    """conv, linear, recurrent or embedding; None for everything that is not a layer with weights of its own."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return "conv"
    if isinstance(module, nn.Linear | nn.Bilinear) or _is_transformers_conv1d(module):
        return "linear"
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "recurrent"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    return None


def widths(module: nn.Module) -> tuple[int, int]:
    """(inputs, outputs) of a linear layer."""
    if _is_transformers_conv1d(module):
        return module.nx, module.nf  # type: ignore[return-value]
    return getattr(module, "in_features", 0), getattr(module, "out_features", 0)


def _is_transformers_conv1d(module: nn.Module) -> bool:
    # A linear layer with a convolution's name (GPT-2), recognised by its module: transformers may not be installed.
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def is_composite_activation(module: nn.Module) -> bool:
    """Whether a module is one activation, although it calls several functions."""
    home = type(module).__module__
    return home.startswith("transformers.activations") or (
        home.endswith((".activations", ".activation")) and not home.startswith("torch.") and not any(module.children())
    )


def is_activation(module: nn.Module) -> bool:
    plain = type(module).__module__ == "torch.nn.modules.activation" and "Softm" not in type(module).__name__
    return is_composite_activation(module) or (plain and not isinstance(module, nn.MultiheadAttention))


def is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ and not any(module.children())  # a PreNorm block has a norm but is not one


def keeps_running_statistics(module: nn.Module) -> bool:
    """Whether train mode would move it, as it does BatchNorm."""
    return getattr(module, "running_mean", None) is not None


def is_dropout(module: nn.Module) -> bool:
    """Whether a module is a dropout: one of torch's, which share `_DropoutNd`, or by name one of another library."""
    named = bool(_DROPOUT_CLASS.search(type(module).__name__)) and not any(module.children())
    return named or isinstance(module, nn.modules.dropout._DropoutNd)


def is_foreign_dropout(module: nn.Module) -> bool:
    """Whether a module is a dropout that torch does not define."""
    return is_dropout(module) and not type(module).__module__.startswith("torch.nn.modules.dropout")


def dropout_rate(module: nn.Module) -> float | None:
    """The rate that a dropout module says it has; None if it has no such attribute."""
    for field in _DROPOUT_RATE_FIELDS:
        value = getattr(module, field, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def foreign_mask(module: nn.Module) -> str:
    """DropPath and stochastic depth drop a whole example's branch; other dropout classes drop units."""
    return "element" if "Dropout" in type(module).__name__ else "example"


def kind(module: nn.Module) -> str:
    """The kind of a module; `block` where it is none of these."""
    if isinstance(module, nn.MultiheadAttention):
        return "attention"
    if is_dropout(module):
        return "dropout"
    if is_norm(module):
        return "norm"
    if is_activation(module):
        return "activation"
    return layer_kind(module) or "block"


@dataclass(frozen=True, eq=False)
class TracedModule:
    """A module and its kind, determined once."""

    path: str
    module: nn.Module
    kind: str
    composite: bool
    whole: bool  # the model itself: its input and output are not shown, unless it is a single layer

    @classmethod
    def of(cls, path: str, module: nn.Module) -> TracedModule:
        what = kind(module)
        whole = path == ROOT and what not in LAYERS
        return cls(path, module, what, is_composite_activation(module), whole)
