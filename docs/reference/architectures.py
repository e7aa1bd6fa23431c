"""Writes architectures.md: what works with each causal language model family of transformers.

`make architectures` runs it. It makes a tiny random model of each family and takes it through all stages, which takes
half an hour. Rows are kept in a file, so that a sweep that was stopped continues. With `--only` no page is written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.families.sweep import FamilyRow, sweep  # noqa: E402  # the repository is on the path now
from benchmarks.families.tiny_model import class_name, families  # noqa: E402

ROWS = Path("build/architectures.jsonl")
PAGE = Path(__file__).with_name("architectures.md")
INTRODUCTION = """\
# Architectures

`make architectures` writes this page. It makes a tiny random model of each causal language model family of transformers
{transformers} and takes it through these stages on the CPU, in float32:

| stage | what is compared |
|---|---|
| load | The server's logits with those of the model; earlier logits do not depend on later tokens. |
| LoRA, full | Log-probabilities of padded batches with those of plain transformers; then optimizer steps. |
| sample | Log-probabilities of samples with those that training computes for the same tokens, within 1e-4. |
| restore | The losses of a run that was saved and restored with those of the run itself, bit for bit. |
| PEFT | The logits of PEFT with the exported adapter with those of the run, within 1e-4. |
| merge | The logits of transformers with the merged model with those of the run, within 1e-4. |
| two ranks | Losses and samples of two processes that hold the model with FSDP2 with those of one process. |

The server verifies each model again when it loads it, and refuses a model whose logits it does not understand. The
column *LoRA* says which layers cannot be adapted; full fine-tuning trains all weights. The column *sampler* names the
network that samples: *fused* is the decoder for Llama-like models, *generic* runs the model of transformers.
"""
PEFT = """\
Where PEFT's logits differ, PEFT 0.21 takes layers named `gate_proj`, `up_proj` and `down_proj` for routed experts,
although they belong to shared experts or dense layers, and does not load the adapter's matrices for them. Merge such a
run, or create it with `train_mlp=False`.
"""
UNTRIED = """\
The script has not made a tiny model of these families, or its values for their configuration do not fit. The server may
load them. Mixtures of experts have a [guide](../guides/mixtures-of-experts.md) of their own.
"""


def render(rows: Iterable[FamilyRow]) -> str:
    rows = [row for row in sorted(rows, key=lambda row: row.family) if row.stages.get("make", "ok") == "ok"]
    good = [row for row in rows if row.is_good]
    bad = [row for row in rows if not row.is_good]
    both = sum(row.stages.get("two ranks") == "ok" for row in good)
    works = "".join(map(good_line, good))
    fails = "".join(map(bad_line, bad))
    note = f"\n{PEFT}" if any("PEFT's logits" in row.stages.get("PEFT", "") for row in bad) else ""
    others = sorted(set(families()) - {row.family for row in rows})
    rest = f"## Not tried\n\n{UNTRIED}\n{', '.join(f'`{name}`' for name in others)}\n" if others else ""
    return "\n".join(
        (
            INTRODUCTION.format(transformers=version("transformers")),
            f"## What works\n\n{len(good)} families pass all stages in one process, and {both} of them on two ranks.\n",
            f"| family | class | LoRA | sampler | two ranks |\n|---|---|---|---|---|\n{works}",
            f"## What does not\n\n| family | class | stage | reason |\n|---|---|---|---|\n{fails}{note}",
            *([rest] if rest else []),
        )
    )


def good_line(row: FamilyRow) -> str:
    ranks = row.stages.get("two ranks", "not tried")
    lora, sampler = row.notes.get("LoRA", "yes"), row.notes.get("sampler", "")
    return f"| `{row.family}` | {class_name(row.family)} | {lora} | {sampler} | {cell(ranks)} |\n"


def bad_line(row: FamilyRow) -> str:
    stage, reason = next((stage, outcome) for stage, outcome in row.stages.items() if outcome != "ok")
    return f"| `{row.family}` | {class_name(row.family)} | {stage} | {cell(reason)} |\n"


def cell(text: str) -> str:
    plain = re.sub(r" from '/[^']*'", "", re.sub(r"^(ServerFailure|StageFailed): (model '[^']*' \(\w+\) )?", "", text))
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def read_rows(path: Path) -> dict[str, FamilyRow]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {row.family: row for row in (FamilyRow(**json.loads(line)) for line in lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the table of architectures.")
    parser.add_argument("--only", action="append", metavar="FAMILY", help="Take this family only (repeatable).")
    parser.add_argument("--jobs", type=int, default=2, help="Families at the same time (default: 2).")
    parser.add_argument("--alone", action="store_true", help="Leave out the stage on two ranks.")
    parser.add_argument("--rows", type=Path, default=ROWS, help=f"File of rows so far (default: {ROWS}).")
    parser.add_argument("--again", action="store_true", help="Take families again that have a row in the file.")
    asked = parser.parse_args()
    asked.rows.parent.mkdir(parents=True, exist_ok=True)
    rows = read_rows(asked.rows)
    names = [name for name in asked.only or families() if asked.again or asked.only or name not in rows]
    with asked.rows.open("a") as file:
        for row in sweep(names, jobs=asked.jobs, with_ranks=not asked.alone):
            failed = {stage: outcome for stage, outcome in row.stages.items() if outcome != "ok"}
            print(f"{row.family:24} {row.seconds:5.1f} s  {failed or 'ok'}  {row.notes}", flush=True)
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            rows[row.family] = row
    if not asked.only:
        PAGE.write_text(render(rows.values()))


if __name__ == "__main__":
    main()
