"""Models and data by name: code, Hugging Face checkpoints, tables and image folders."""

from dropscope.loading.code import LoadedModel, few_inputs, load_data, load_model
from dropscope.loading.files import read_table

__all__ = ["LoadedModel", "few_inputs", "load_data", "load_model", "read_table"]
