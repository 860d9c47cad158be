"""Hugging Face families: which config field sets the dropout of which part, and fields that set nothing.

Owns the table of fields. `sites` finds sites without it, in any family, and the measured rate decides; a field only
says what was intended.
"""

from __future__ import annotations

import copy
from typing import Any

from dropscope.errors import BadInput, nearest

_BERT: dict[str, tuple[str, ...]] = {
    "attention": ("attention_probs_dropout_prob",),
    "hidden": ("hidden_dropout_prob",),
    "head": ("classifier_dropout",),
}
_GPT = {"attention": ("attn_pdrop",), "hidden": ("resid_pdrop", "embd_pdrop"), "head": ("summary_first_dropout",)}
# model_type → part → fields. "hidden" also reaches the attention output, embeddings and, in some families, the head.
FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": {**_BERT, "head": ("classifier_dropout", "summary_last_dropout")},
    "albert": {**_BERT, "head": ("classifier_dropout_prob",)},
    "deberta": {**_BERT, "head": ("cls_dropout", "pooler_dropout")},
    "deberta-v2": {**_BERT, "head": ("cls_dropout", "pooler_dropout")},
    "distilbert": {"attention": ("attention_dropout",), "hidden": ("dropout",), "head": ("seq_classif_dropout",)},
    "gpt2": _GPT,
    "gpt_neo": {
        "attention": ("attention_dropout",),
        "hidden": ("resid_dropout", "embed_dropout"),
        "head": ("classifier_dropout", "summary_first_dropout"),
    },
}


def with_rates(config: Any, **rates: float) -> Any:
    """A copy of a config with other rates, in the fields that its family has for them.

    The model must be built from the copy: a config that changes after that has no effect.

    Args:
        config: The config of a model.
        **rates: Rates of `attention`, `hidden` or `head`.

    Returns:
        The copy.

    Raises:
        BadInput: If the family, or the part, has no known fields.
    """
    family = FIELDS.get(getattr(config, "model_type", ""))
    if family is None:
        got = getattr(config, "model_type", type(config).__name__)
        raise BadInput("config must be of a family whose fields are known", "config", got, nearest(str(got), FIELDS))
    changed = copy.deepcopy(config)
    for part, rate in rates.items():
        if part not in family:
            raise BadInput("rates must name parts that have dropout fields", "rates", part, nearest(part, family))
        for field in family[part]:
            if hasattr(changed, field):
                setattr(changed, field, rate)
    return changed


def ignored_fields(config: Any) -> dict[str, float]:
    """Dropout fields that are set but that the family does not have: the config accepts them, nothing reads them."""
    if not hasattr(config, "model_type") or not hasattr(config, "to_dict"):
        return {}
    try:
        known = vars(type(config)())
    except (TypeError, ValueError):
        return {}  # there is nothing to compare with
    # Some fields are read although no config has them by default: those of the table.
    read = {field for fields in FIELDS.get(config.model_type, {}).values() for field in fields} | set(known)
    return {
        name: value
        for name, value in vars(config).items()
        if "drop" in name and name not in read and isinstance(value, int | float) and not isinstance(value, bool)
    }
