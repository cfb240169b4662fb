"""`spotkit inspect`: what a checkpoint is, before it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from spotkit.cli import options, terminal

if TYPE_CHECKING:
    from spotkit.inspection import Inspection
    from spotkit.logprobs import Sampling
    from spotkit.types import TargetSpec


def inspect(
    path: Annotated[str, typer.Argument(help="Folder or hub id of a checkpoint, or embedded.")],
    mask_id: options.MaskId = None,
    cache: options.Cache = None,
    block_length: Annotated[int | None, typer.Option(help="Default: the model's own.")] = None,
    json_: options.Json = False,
) -> None:
    """Show what a checkpoint is, how its official generator decodes, and what it lacks. Only headers are read.

    Exit status 1 if it could not be loaded.
    """
    from spotkit.cli.targets import silence
    from spotkit.inspection import inspect as look

    silence()
    found = look(path, mask_id=mask_id, cache=cache, block_length=block_length)
    if json_:
        terminal.print_json(fields(found))
    else:
        table = terminal.table("", "", left=2)
        table.show_header = False
        for name, value in lines(found):
            table.add_row(name, value)
        terminal.console().print(table)
    if found.faults:
        raise typer.Exit(1)


def lines(found: Inspection) -> list[tuple[str, str]]:
    """What is shown, name and text."""
    shown = [
        ("adapter", found.adapter),
        ("folder", found.folder),
        ("model", f"transformers' {found.model}" if found.model else "cannot be said"),
        ("sizes", ", ".join(f"{name} {value}" for name, value in found.sizes.items() if not isinstance(value, dict))),
    ]
    if found.parameters is not None:
        kinds = ", ".join(f"{name} {_bytes(size)}" for name, size in found.stored.items())
        memory = ", ".join(f"{name} {_bytes(size)}" for name, size in found.memory.items())
        shown += [
            ("weights", f"{found.parameters:,} in {found.files} file{'s' if found.files > 1 else ''} ({kinds})"),
            ("memory", memory),
        ]
    if found.spec is not None:
        shown += _spec_lines(found.spec)
    shown += [
        ("caches", ", ".join(found.caches)),
        *[
            (
                "preset" if number else "preset, default",
                f"{name}: {rule_text(preset.rule)}, {sampling_text(preset.config.sampling)}, "
                f"{preset.config.max_new_tokens} tokens ({preset.source})",
            )
            for number, (name, preset) in enumerate(found.presets.items())
        ],
        ("tokenizer", _tokenizer(found)),
    ]
    return shown + [("missing", fault) for fault in found.faults]


def fields(found: Inspection) -> dict[str, Any]:
    """What `--json` prints."""
    presets = {
        name: {
            "rule": rule_text(preset.rule),
            "temperature": preset.config.sampling.temperature,
            "top_k": preset.config.sampling.top_k,
            "top_p": preset.config.sampling.top_p,
            "max_new_tokens": preset.config.max_new_tokens,
            "source": preset.source,
        }
        for name, preset in found.presets.items()
    }
    plain = {field.name: getattr(found, field.name) for field in attrs.fields(type(found))}
    spec = None if found.spec is None else attrs.asdict(found.spec)
    return {**plain, "spec": spec, "presets": presets, "memory": dict(found.memory), "faults": list(found.faults)}


def _spec_lines(spec: TargetSpec) -> list[tuple[str, str]]:
    begin = {"absolute": "at multiples of that from position 0", "prompt": "from the end of the prompt on"}
    blocks = "the answer is one" if spec.block_grid == "answer" else f"{spec.block_length}, {begin[spec.block_grid]}"
    attention = "every position sees all others" if spec.attention == "full" else "no position sees a later block"
    return [
        ("ids", f"{spec.vocab_size} in all, mask {spec.mask_id}, end {list(spec.eos_ids)}, padding {spec.pad_id}"),
        ("blocks", blocks),
        ("attention", attention),
        ("longest", f"{spec.max_length} positions" if spec.max_length is not None else "not known"),
    ]


def _tokenizer(found: Inspection) -> str:
    if not found.tokenizer:
        return "none, so it takes and gives token ids only"
    return "with a chat template" if found.chat_template else "without a chat template, so prompts are raw text"


def _bytes(size: int) -> str:
    for unit, width in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= width:
            return f"{size / width:.1f} {unit}"
    return f"{size / 2**10:.1f} KiB"


def rule_text(rule: Any) -> str:
    """A rule with all of its options that are set."""
    if not attrs.has(type(rule)):
        return repr(rule)
    told = []
    for field in attrs.fields(type(rule)):
        value = getattr(rule, field.name)
        if value is not None:
            told.append(f"{field.name}={rule_text(value) if attrs.has(type(value)) else repr(value)}")
    return f"{type(rule).__name__}({', '.join(told)})"


def sampling_text(sampling: Sampling) -> str:
    """Temperature and filters in a few words."""
    words = [f"T={sampling.temperature:g}"]
    if sampling.top_k:
        words.append(f"top-k {sampling.top_k}")
    if sampling.top_p < 1:
        words.append(f"top-p {sampling.top_p:g}")
    return ", ".join(words)
