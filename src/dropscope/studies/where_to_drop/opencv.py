"""OpenCV, where it is needed: an extra, imported at the first use."""

from __future__ import annotations

from typing import Any

from dropscope.errors import MissingExtra


def opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("the mammography task", "opencv-python-headless", "medical") from error
    return cv2
