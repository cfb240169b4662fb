"""Pass reduction on the embedded model: every strategy, budget, temperature and window of the README.

All target passes count on both sides. Records are appended to a JSON-lines file as they are made, and a run
that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import spotkit
from spotkit import embedded
from spotkit.loading import tokenizer_of
from spotkit.results import Result, total

MAX_NEW_TOKENS = 128
BUDGETS = (2, 4, 8, 16, 32)


@attrs.frozen
class Setting:
    """One configuration of the comparison."""

    strategy: str
    budget: int
    window: int = 1
    block_length: int = 16
    temperature: float = 0.0

    @property
    def baseline(self) -> Setting:
        """The plain decoder with the same rule, which every row is measured against."""
        return attrs.evolve(self, strategy="plain", budget=1, window=1)


DRAFTERS = ("freedave", "confidence_tree", "spot")


def settings(drafters: Sequence[str]) -> list[Setting]:
    """All configurations, the plain decoders first among their like."""
    plan = [Setting(name, budget) for name in drafters for budget in BUDGETS]
    plan += [Setting(name, 16, temperature=1.0) for name in drafters]
    plan += [Setting(name, 16, window=window) for name in drafters for window in (2, 3)]
    plan += [Setting(name, 32, window=2) for name in drafters]
    plan += [Setting(name, 16, window=window, block_length=4) for name in drafters for window in (1, 2, 3)]
    return list(dict.fromkeys(s for setting in plan for s in (setting.baseline, setting)))


def decode_all(setting: Setting, prompts: list[list[int]]) -> list[Result]:
    """Every prompt alone (batch 1), with the prompt's index as row id."""
    target = spotkit.load("embedded", block_length=setting.block_length, dtype=torch.float32)
    strategy = spotkit.strategy(
        setting.strategy, target=target, rule="static", budget=setting.budget, window=setting.window
    )
    config = spotkit.DecodeConfig(
        max_new_tokens=MAX_NEW_TOKENS, sampling=spotkit.Sampling(temperature=setting.temperature), seed=0
    )
    return [spotkit.decode(target, [p], strategy=strategy, config=config, row_ids=[i]) for i, p in enumerate(prompts)]


def record_of(setting: Setting, results: list[Result], plain: list[Result], answers: list[bool]) -> dict[str, Any]:
    """The figures of one configuration."""
    mine, base = total([r.stats for r in results]), total([r.stats for r in plain])
    return {
        **attrs.asdict(setting),
        "target": "embedded",
        "task": "arithmetic",
        "rule": "static",
        "prompts": len(results),
        "passes": mine.passes,
        "steps_per_pass": mine.steps_per_pass,
        "pass_reduction": base.passes / mine.passes,
        "tokens_per_second": mine.tokens_per_second,
        "identical": all(a.same_text(b) for a, b in zip(results, plain, strict=True)),
        "accuracy": sum(answers) / len(answers),
    }


def table(records: list[dict[str, Any]]) -> str:
    """The records as Markdown, one row per strategy, temperature, block length and window."""
    lines = ["| block | window | T | strategy | " + " | ".join(f"K={k}" for k in BUDGETS) + " | identical |"]
    lines.append("|" + "---|" * (5 + len(BUDGETS)))
    rows: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for r in records:
        if r["strategy"] != "plain":
            key = (r["block_length"], r["window"], r["temperature"], r["strategy"])
            rows.setdefault(key, {})[r["budget"]] = r
    for key, cells in sorted(rows.items(), key=lambda kv: (-kv[0][0], kv[0][2], kv[0][1], kv[0][3])):
        figures = [f"{cells[k]['pass_reduction']:.2f}" if k in cells else "" for k in BUDGETS]
        same = "yes" if all(c["identical"] for c in cells.values()) else "NO"
        lines.append("| " + " | ".join([str(k) if not isinstance(k, float) else f"{k:g}" for k in key]) + " | "
                     + " | ".join(figures) + f" | {same} |")  # fmt: skip
    return "\n".join(lines)


def main(
    jsonl: Annotated[Path, typer.Option(help="Records; an existing file is continued.")] = Path("headline.jsonl"),
    problems: Annotated[int, typer.Option(help="Held-out problems.")] = 100,
    strategy: Annotated[
        list[str] | None, typer.Option(help=f"May be repeated. Default: {', '.join(DRAFTERS)}.")
    ] = None,
) -> None:
    """Measures all configurations and prints the README's table; exit status 1 if any text differs."""
    target = spotkit.load("embedded")
    tokenizer = tokenizer_of(target)
    chosen = embedded.problems()[:problems]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p.question}], add_generation_prompt=True)[
            "input_ids"
        ]
        for p in chosen
    ]
    done = [json.loads(line) for line in jsonl.read_text().splitlines()] if jsonl.exists() else []
    known = {tuple(r[f.name] for f in attrs.fields(Setting)): r for r in done if r["prompts"] == len(prompts)}
    plans = settings(strategy or DRAFTERS)
    plains: dict[Setting, list[Result]] = {}
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True)) as progress, jsonl.open("a") as out:
        for setting in progress.track(plans, description="configurations"):
            if attrs.astuple(setting) in known:
                continue
            base = setting.baseline
            if base not in plains:
                plains[base] = decode_all(base, prompts)
            results = plains[base] if setting == base else decode_all(setting, prompts)
            texts = [tokenizer.decode(r.rows[0].tokens) for r in results]
            right = [_answer(t) == p.answer for t, p in zip(texts, chosen, strict=True)]
            known[attrs.astuple(setting)] = record_of(setting, results, plains[base], right)
            out.write(json.dumps(known[attrs.astuple(setting)]) + "\n")
            out.flush()
    records = [known[attrs.astuple(s)] for s in plans]
    plain = next(r for r in records if r["strategy"] == "plain")
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    solved = f"{len(prompts)} held-out problems, {plain['accuracy']:.0%} of them solved"
    typer.echo(f"{machine}, float32, batch 1, {solved}\n\n{table(records)}")
    raise typer.Exit(0 if all(r["identical"] for r in records) else 1)


def _answer(text: str) -> int | None:
    found = re.findall(r"Answer: (\d+)", text)
    return int(found[-1]) if found else None


if __name__ == "__main__":
    typer.run(main)
