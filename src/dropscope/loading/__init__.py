"""Models and data by name: code, Hugging Face checkpoints, tables and image folders."""

from dropscope.loading.files import column_texts, empty_cell, find_column, read_json_lines, read_table, read_text
from dropscope.loading.huggingface import (
    Checkpoint,
    CheckpointNotFound,
    import_transformers,
    load_classifier,
    quiet,
    read_checkpoint,
)
from dropscope.loading.names import LoadedModel, few_inputs, load_data, load_model

__all__ = [
    "Checkpoint",
    "CheckpointNotFound",
    "LoadedModel",
    "column_texts",
    "empty_cell",
    "few_inputs",
    "find_column",
    "import_transformers",
    "load_classifier",
    "load_data",
    "load_model",
    "quiet",
    "read_checkpoint",
    "read_json_lines",
    "read_table",
    "read_text",
]
