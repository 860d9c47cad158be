"""Passes of a BERT-base-sized classifier: folded, length-sorted and in bf16, against the library's own loop in fp16.

    python benchmarks/transformer_passes.py [--device cuda] [--items 200] [--passes 100] [--layers 12] [--width 768]

The loop is what people write: `model.train()`, no gradients, items in batches of 32 as they come, padded to the longest
of a batch; on a GPU once under autocast to fp16 (mixed precision, as the paper trains), once with all weights cast to
fp16 beforehand. Token counts are drawn like those of the study's items (SQuAD and HellaSwag halves under BERT's
tokenizer). Weights are random: time does not depend on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dropscope.model import id_keys
from dropscope.placement import Placement
from dropscope.studies.transformer_profile.evaluation import bench
from dropscope.studies.transformer_profile.tokens import Encoded


def network(layers: int, width: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    size = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": max(1, width // 64)}
    return BertForSequenceClassification(BertConfig(**size, intermediate_size=4 * width, num_labels=2)).eval()


def items(count: int) -> Encoded:
    draw = np.random.default_rng(0)
    # Memory items: question, 200 characters of context, answer; reasoning items: context and one ending.
    lengths = np.where(np.arange(count) % 2, draw.normal(72, 9, count), draw.normal(88, 34, count)).clip(24, 180)
    tokens = tuple(torch.from_numpy(draw.integers(1000, 30000, int(length))) for length in lengths)
    table = pd.DataFrame({"item": range(count), "label": np.arange(count) % 2, "group": "all", "context": range(count)})
    return Encoded(table, tokens, 0, id_keys(list(range(count))))


def library_loop(model: nn.Module, encoded: Encoded, passes: int, device: torch.device, mixed: bool = False) -> Tensor:
    rows = [list(range(i, min(i + 32, len(encoded.tokens)))) for i in range(0, len(encoded.tokens), 32)]
    batches = [{name: value.to(device) for name, value in encoded.inputs(some).items()} for some in rows]
    model.train()
    with torch.no_grad(), torch.autocast(device.type, torch.float16, enabled=mixed):
        found = [torch.cat([model(**batch).logits for batch in batches]).float().softmax(-1) for _ in range(passes)]
    model.eval()
    return torch.stack(found)


def timed(work: Callable[[], Tensor], device: torch.device, repeat: int) -> tuple[float, Tensor]:
    seconds = []
    for _ in range(repeat):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        found = work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds), found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in (("items", 200), ("passes", 100), ("layers", 12), ("width", 768), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    encoded = items(asked.items)
    half = device.type == "cuda"
    print(f"{torch.cuda.get_device_name() if half else 'cpu'}, torch {torch.__version__}")
    loops = {"autocast to fp16": (torch.float32, True), "fp16 weights": (torch.float16, False)}
    loops = loops if half else {"fp32": (torch.float32, False)}
    loop_seconds = {}
    for name, (dtype, mixed) in loops.items():
        model = network(asked.layers, asked.width).to(device, dtype)
        library_loop(model, encoded, 1, device, mixed)
        loop_seconds[name], by_loop = timed(
            lambda model=model, mixed=mixed: library_loop(model, encoded, asked.passes, device, mixed),  # type: ignore[misc]
            device, asked.repeat,
        )  # fmt: skip
        print(f"library's loop, batches of 32, {name}: {loop_seconds[name]:.2f} s")
    shown: dict[str, Tensor] = {}
    for precision in ("bf16", "fp32") if half else ("fp32",):
        on = bench(network(asked.layers, asked.width), encoded, device, precision)
        engine = on.engine(Placement.parse("own"), asked.passes, "per_example", 0)
        rows = {id(batch): batch.rows.to(device) for batch in engine.session.data.batches}

        def ours(engine=engine, rows=rows) -> Tensor:  # type: ignore[no-untyped-def]
            answer = torch.zeros(asked.passes, asked.items, 2, device=device)
            for batch, block in engine.samples_of_all(0):
                p = block.probabilities
                answer[block.first : block.first + len(p), rows[id(batch)]] = p.float()
            return answer

        started = time.perf_counter()
        ours()
        once = time.perf_counter() - started
        seconds, shown[precision] = timed(ours, device, asked.repeat)
        ratios = ", ".join(f"{taken / seconds:.1f}x the loop ({name})" for name, taken in loop_seconds.items())
        print(f"ours, {precision}: {seconds:.2f} s, {ratios}; padding {on.padding:.1%}; "
              f"first call, kernels compiled: {once:.1f} s; {len(engine.placements[0])} noisy values")  # fmt: skip
    spread = {"loop": by_loop, **shown}
    for name, p in spread.items():
        print(f"{name}: mean probability {p.mean((0, 1)).tolist()}, std over passes {p.std(0).mean():.5f}")
    if "bf16" in shown:
        apart = (shown["bf16"] - shown["fp32"]).abs()
        print(f"bf16 against fp32, the same masks: |difference| mean {apart.mean():.5f}, largest {apart.max():.4f}")
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
