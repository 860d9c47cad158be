"""Data sets of any form, read into batches whose examples have keys."""

from dropscope.data.batches import Batch, Data
from dropscope.data.collate import Keys
from dropscope.data.dataset import check_labels, first_call, read_data

__all__ = ["Batch", "Data", "Keys", "check_labels", "first_call", "read_data"]
