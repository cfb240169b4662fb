"""`spotkit generate`: one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from spotkit.cli import options, terminal
from spotkit.errors import ConfigError, SpotkitError

if TYPE_CHECKING:
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
    rule: Annotated[str | None, typer.Option(help="Decoding rule. Default: the model's own.")] = None,
    rule_option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")] = None,
    temperature: Annotated[float, typer.Option(help="0 decodes greedily.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all tokens.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all tokens.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text, whatever the strategy.")] = 0,
    budget: Annotated[int, typer.Option(help="States scored per pass.")] = 8,
    window: Annotated[int, typer.Option(help="Blocks per canvas.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="At most so many.")] = 256,
    block_length: Annotated[int | None, typer.Option(help="Default: the model's own.")] = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    layout: options.Layout = "tree",
    raw: Annotated[bool, typer.Option("--raw", help="Do not put the prompt through the chat template.")] = False,
    json_: options.Json = False,
) -> None:
    """Decode one prompt. The text goes to standard output, one line about the decode to standard error."""
    from spotkit.build import strategy as build
    from spotkit.cli.targets import encode, load_target, text_of
    from spotkit.logprobs import Sampling
    from spotkit.loop import decode
    from spotkit.settings import DecodeConfig

    text = _prompt(prompt)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    config = DecodeConfig(max_new_tokens=max_new_tokens, sampling=sampling, seed=seed)
    extra = options.parse_pairs("--strategy-option", strategy_option or [])
    for taken in ("target", "rule", "acceptance", "budget", "window", "rule_options"):
        if taken in extra:
            raise ConfigError(f"--strategy-option {taken}: no option of a strategy; see --help for what sets it")
    rule_options = options.parse_pairs("--rule-option", rule_option or [])
    target = load_target(model, device_map=device_map, dtype=dtype, block_length=block_length, layout=layout)
    name = strategy or ("spot" if drafter is not None or _has_drafter(target) else "confidence_tree")
    chosen = build(
        name,
        target=target,
        rule=rule or target.spec.default_rule,
        budget=budget,
        window=window,
        rule_options=rule_options,
        **extra if drafter is None else {**extra, "drafter": drafter},
    )
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


def _has_drafter(target: Target) -> bool:
    """Whether SPOT can serve the target without being told where its drafter is."""
    from spotkit.build import make_drafter

    try:
        make_drafter("spot", target=target).init(target.spec, batch_size=1)
    except SpotkitError:
        return False
    return True


def _fields(result: Result) -> dict[str, Any]:
    row = result.rows[0]
    return {
        "tokens": list(row.tokens),
        "finish_reason": row.finish_reason,
        "guarantee": result.guarantee.name,
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
        f"{stats.tokens_per_second:.0f} tokens/s, {result.guarantee.name} ({result.guarantee.value})"
    )
