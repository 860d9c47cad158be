"""The one place that knows the version; the package's metadata is made from it."""

__version__ = "0.1.0"
