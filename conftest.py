"""What pytest leaves out: the GPU kernels cannot be imported where there is no Triton."""

import importlib.util

collect_ignore_glob = (
    [] if importlib.util.find_spec("triton") else ["src/dropscope/*/kernels.py", "src/dropscope/engine/products.py"]
)
