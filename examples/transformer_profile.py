"""Does MC dropout help this classifier, and where does it hurt? The study transformer-profile from Python.

    python examples/transformer_profile.py all-MiniLM-L6-v2 dev-v1.1.json hellaswag_val.jsonl --items 1000

Fine-tunes the checkpoint once, evaluates it under five configurations of dropout with an audit each, and prints the
accuracies and the recommendation. Rows, tables, figures and the summary are in the folder of `--out`.
"""

from __future__ import annotations

import argparse

from dropscope.studies.transformer_profile import Options, plan, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="a folder or a name on the Hub")
    parser.add_argument("squad")
    parser.add_argument("hellaswag")
    parser.add_argument("--items", type=int)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--out", default="my-profile")
    asked = parser.parse_args()

    options = Options(
        models=[asked.checkpoint], squad=asked.squad, hellaswag=asked.hellaswag, preset=asked.preset,
        items=asked.items, learning_rate=asked.learning_rate, out=asked.out,
    )  # fmt: skip
    outcome = run(plan(options))

    accuracy = outcome.tables["passes"].groupby(["group", "configuration"], sort=False).accuracy
    print(accuracy.agg(["mean", "std"]).round(3).to_string())
    print(outcome.tables["recommendations"].to_string(index=False))


if __name__ == "__main__":
    main()
