"""The user's model and one call of it: unwrapping, inputs, outputs, fingerprints."""

from dropscope.model.fingerprints import code_fingerprint, digest, raw, weights_fingerprint
from dropscope.model.handling import (
    OURS,
    Shadows,
    device_of,
    evaluating,
    is_hooked,
    random_state_kept,
    runs_fused,
    shadow,
    state_kept,
    undisturbed,
    unwrap,
    writes,
)
from dropscope.model.inputs import (
    LABEL_KEYS,
    Call,
    accepted,
    id_keys,
    main_tensor,
    output_tensors,
    replace_tensor,
    tensors,
)
from dropscope.model.outputs import Outputs, probabilities

__all__ = [
    "LABEL_KEYS",
    "OURS",
    "Call",
    "Outputs",
    "Shadows",
    "accepted",
    "code_fingerprint",
    "device_of",
    "digest",
    "evaluating",
    "id_keys",
    "is_hooked",
    "main_tensor",
    "output_tensors",
    "probabilities",
    "random_state_kept",
    "raw",
    "replace_tensor",
    "runs_fused",
    "shadow",
    "state_kept",
    "tensors",
    "undisturbed",
    "unwrap",
    "weights_fingerprint",
    "writes",
]
