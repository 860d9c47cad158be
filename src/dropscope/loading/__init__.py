"""Models and data by name: code, Hugging Face checkpoints, tables and image folders."""

from dropscope.loading.classes import as_class_names, class_names_of_model, read_labels, settle_class_names
from dropscope.loading.code import call_code, load_transforms
from dropscope.loading.huggingface import (
    Checkpoint,
    import_transformers,
    load_classifier,
    quiet,
    read_checkpoint,
)
from dropscope.loading.inspection import check_archive, check_safetensors, check_unpacked
from dropscope.loading.names import LoadedModel, load_model, run_model_code
from dropscope.loading.sources import LoadedData, as_loaded, few_inputs, load_data, open_data
from dropscope.loading.tables import (
    LABEL_COLUMNS,
    column_texts,
    empty_cell,
    find_column,
    read_json_lines,
    read_table,
    read_text,
)
from dropscope.loading.weights import load_weights

__all__ = [
    "LABEL_COLUMNS",
    "Checkpoint",
    "LoadedData",
    "LoadedModel",
    "as_class_names",
    "as_loaded",
    "call_code",
    "check_archive",
    "check_safetensors",
    "check_unpacked",
    "class_names_of_model",
    "column_texts",
    "empty_cell",
    "few_inputs",
    "find_column",
    "import_transformers",
    "load_classifier",
    "load_data",
    "load_model",
    "load_transforms",
    "load_weights",
    "open_data",
    "quiet",
    "read_checkpoint",
    "read_json_lines",
    "read_labels",
    "read_table",
    "read_text",
    "run_model_code",
    "settle_class_names",
]
