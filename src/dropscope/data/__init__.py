"""Data sets in any form, read into batches whose examples have keys."""

from dropscope.data.dataset import Batch, Data, check_labels, read_data

__all__ = ["Batch", "Data", "check_labels", "read_data"]
