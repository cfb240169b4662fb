"""`spotkit generate`: one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from spotkit.cli import options, terminal
from spotkit.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from spotkit.presets import Preset
    from spotkit.protocols import Target
    from spotkit.results import Result, Stats


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; standard input if left out.")] = None,
    model: Annotated[str, typer.Option(help="Folder or hub id of the target.")] = "embedded",
    strategy: Annotated[
        str | None,
        typer.Option(help="Default: spot if there is a drafter for the model, else confidence_tree."),
    ] = None,
    strategy_option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Folder of a drafter, for strategies that have one.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="How the model's official generator decodes; `spotkit inspect` lists its ways."),
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Decoding rule. Default: the preset's.")] = None,
    rule_option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 decodes greedily. Default, here and below: the preset's.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="0 keeps all tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="1 keeps all tokens.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text, whatever the strategy.")] = 0,
    budget: Annotated[int, typer.Option(help="States scored per pass.")] = 8,
    window: Annotated[int, typer.Option(help="Blocks per canvas.")] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(help="At most so many.")] = None,
    block_length: Annotated[int | None, typer.Option(help="Default: the model's own.")] = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    layout: options.Layout = "tree",
    cache: options.Cache = None,
    mask_id: options.MaskId = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not put the prompt through the chat template.")] = False,
    json_: options.Json = False,
) -> None:
    """Decode one prompt. The text goes to standard output, one line about the decode to standard error."""
    from spotkit.build import default_name
    from spotkit.build import strategy as build
    from spotkit.cli.targets import encode, load_target, text_of
    from spotkit.logprobs import Sampling
    from spotkit.loop import decode
    from spotkit.settings import DecodeConfig

    text = _prompt(prompt)
    sampling = _given(temperature=temperature, top_k=top_k, top_p=top_p)
    length = _given(max_new_tokens=max_new_tokens)
    DecodeConfig(sampling=Sampling(**sampling), seed=seed, **length)  # refused before anything is loaded
    extra = options.parse_pairs("--strategy-option", strategy_option or [])
    for taken in ("target", "rule", "acceptance", "budget", "window", "rule_options"):
        if taken in extra:
            raise ConfigError(f"--strategy-option {taken}: no option of a strategy; see --help for what sets it")
    rule_options = options.parse_pairs("--rule-option", rule_option or [])
    if rule_options and rule is None:
        raise ConfigError(f"--rule-option {next(iter(rule_options))}: say which --rule takes it")
    target = load_target(
        model,
        device_map=device_map,
        dtype=dtype,
        block_length=block_length,
        layout=layout,
        cache=cache,
        mask_id=mask_id,
    )
    way = _preset(target, preset)
    name = strategy or ("spot" if drafter is not None else default_name(target))
    chosen = build(
        name,
        target=target,
        rule=rule or way.rule,
        budget=budget,
        window=window,
        rule_options=rule_options,
        **extra if drafter is None else {**extra, "drafter": drafter},
    )
    config = attrs.evolve(way.config, sampling=attrs.evolve(way.config.sampling, **sampling), seed=seed, **length)
    result = decode(target, [encode(target, text, raw=raw)], strategy=chosen, config=config)
    answer = text_of(target, result.rows[0].tokens)
    if json_:
        terminal.print_json({"text": answer, "strategy": name, **_fields(result)})
    else:
        typer.echo(answer)
        terminal.note(_summary(name, result))


def _prompt(argument: str | None) -> str:
    """The prompt from the argument or standard input.

    Raises:
        ConfigError: there is none.
    """
    if argument is None and (sys.stdin is None or sys.stdin.isatty()):
        raise ConfigError("prompt: give it as an argument, or pipe it in")
    text = sys.stdin.read().removesuffix("\n") if argument is None else argument
    if not text:
        raise ConfigError("prompt='': nothing to answer; give some text")
    return text


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _preset(target: Target, name: str | None) -> Preset:
    """The target's preset of that name, or its default.

    Raises:
        UnknownNameError: it has none of that name.
    """
    from spotkit.presets import default_preset, presets_of

    if name is None:
        return default_preset(target)
    known = presets_of(target)
    if name not in known:
        raise UnknownNameError(f"preset={name!r}: {target.spec.name} has {', '.join(known)}")
    return known[name]


def _fields(result: Result) -> dict[str, Any]:
    row = result.rows[0]
    return {
        "tokens": list(row.tokens),
        "finish_reason": row.finish_reason,
        "guarantee": result.guarantee.name,
        "cache": result.cache,
        "seed": result.seed,
        "stats": stats_fields(row.stats),
    }


def stats_fields(stats: Stats) -> dict[str, float]:
    """Counts and the rates made of them."""
    return {
        **attrs.asdict(stats),
        "steps_per_pass": stats.steps_per_pass,
        "tokens_per_forward": stats.tokens_per_forward,
        "tokens_per_second": stats.tokens_per_second,
    }


def _summary(name: str, result: Result) -> str:
    stats = result.stats
    return (
        f"{name}: {stats.passes} passes, {stats.steps_per_pass:.2f} steps per pass, "
        f"{stats.tokens_per_second:.0f} tokens/s, {result.guarantee.name} ({result.guarantee.value}), "
        f"cache {result.cache}"
    )
