"""The beginning of a decode: prompts checked, the first state, and what stays the same throughout."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from spotkit import build, stop
from spotkit.errors import ConfigError
from spotkit.presets import default_preset
from spotkit.protocols import Target
from spotkit.sampler import Sampler
from spotkit.settings import DecodeConfig, Strategy, guarantee_of
from spotkit.types import State, TargetSpec


@attrs.frozen(eq=False)
class Job:
    """Everything that stays the same during one decode."""

    spec: TargetSpec
    strategy: Strategy
    config: DecodeConfig
    sampler: Sampler
    prompt_end: Tensor
    text_end: Tensor

    @property
    def with_step(self) -> bool:
        """Whether states that differ only in their step count have different successors."""
        return self.strategy.rule.uses_step or not self.sampler.sampling.greedy

    def finished(self, state: State) -> Tensor:
        """Which states `[B, ...]` need no further step."""
        prompt_end, text_end = (t.view(-1, *[1] * (state.step.ndim - 1)) for t in (self.prompt_end, self.text_end))
        return stop.finished(
            state,
            prompt_end=prompt_end,
            text_end=text_end,
            eos_ids=self.spec.eos_ids,
            whole_blocks=self.config.finish_block,
        )


def check_parts(
    target: Target, strategy: Strategy | None, config: DecodeConfig | None
) -> tuple[Strategy, DecodeConfig]:
    """The strategy, and the configuration with a seed; what is None is the target's own.

    Raises:
        ConfigError: one of the three is something else.
    """
    if isinstance(target, type) or not isinstance(target, Target):
        raise ConfigError(f"target={target!r}: give an instance that follows the Target protocol")
    if strategy is None:
        strategy = build.strategy(target=target)
    if config is None:
        config = default_preset(target).config
    if not isinstance(strategy, Strategy):
        raise ConfigError(f"strategy={strategy!r}: give a Strategy: rule, drafter and acceptance rule together")
    if not isinstance(config, DecodeConfig):
        raise ConfigError(f"config={config!r}: give a DecodeConfig")
    return strategy, config.seeded()


def check_prompts(prompts: Sequence[Sequence[int] | Tensor], spec: TargetSpec) -> list[Tensor]:
    """The prompts as int64 tensors `[P_b]`.

    Raises:
        ConfigError: no prompt, an empty prompt, a mask id or an id outside the vocabulary.
    """
    if isinstance(prompts, (str, bytes)):
        raise ConfigError(f"prompts={prompts!r}: give token ids, one sequence per row, not text; encode it first")
    if not isinstance(prompts, (Sequence, Tensor)):
        raise ConfigError(f"prompts={prompts!r}: give a sequence of prompts, each a sequence of token ids")
    if len(prompts) == 0:
        raise ConfigError("prompts=[]: give at least one prompt")
    ids = []
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, (str, bytes)) or not isinstance(prompt, (Tensor, Sequence)):
            raise ConfigError(f"prompts[{row}]={prompt!r}: give a sequence of token ids per row")
        try:
            tensor = torch.as_tensor(prompt)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"prompts[{row}]={prompt!r}: give integer token ids ({error})") from error
        if tensor.ndim != 1 or tensor.numel() == 0:
            raise ConfigError(
                f"prompts[{row}]: shape {list(tensor.shape)}; give at least one token id (a start token, say)"
            )
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise ConfigError(f"prompts[{row}]: dtype {tensor.dtype}; give integer token ids")
        tensor = tensor.to("cpu", torch.int64)
        if bool((tensor == spec.mask_id).any()):
            place = int((tensor == spec.mask_id).long().argmax())
            raise ConfigError(
                f"prompts[{row}][{place}]={spec.mask_id}: the mask id cannot be part of a prompt; remove it"
            )
        bad = (tensor < 0) | (tensor >= spec.vocab_size)
        if bool(bad.any()):
            place = int(bad.long().argmax())
            raise ConfigError(
                f"prompts[{row}][{place}]={int(tensor[place])}: outside the vocabulary 0..{spec.vocab_size - 1}; "
                "use the target's own tokenizer"
            )
        ids.append(tensor)
    return ids


def begin(
    ids: Sequence[Tensor],
    *,
    spec: TargetSpec,
    strategy: Strategy,
    config: DecodeConfig,
    row_ids: Sequence[int] | None,
    device: torch.device,
) -> tuple[Job, State, list[Tensor]]:
    """The fixed part of the decode, the first state, and the ids that lie before its canvas."""
    promised = guarantee_of(strategy)
    if config.guarantee is not None and not promised.covers(config.guarantee):
        raise ConfigError(
            f"guarantee={config.guarantee.name}: {type(strategy.acceptance).__name__} gives {promised.name}; "
            "use StateEquality, or ask for less"
        )
    if row_ids is not None and not isinstance(row_ids, Sequence):
        raise ConfigError(f"row_ids={row_ids!r}: give a sequence of integers, one per prompt")
    names = list(range(len(ids))) if row_ids is None else list(row_ids)
    if len(names) != len(ids):
        raise ConfigError(f"row_ids={names}: {len(names)} ids for {len(ids)} prompts; give one per prompt")
    if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**63 for n in names):
        raise ConfigError(f"row_ids={names}: give integers from 0 to 2**63 - 1")
    length = spec.block_length
    prompt_end = torch.tensor([len(p) for p in ids])
    text_end = prompt_end + config.max_new_tokens
    longest = int(text_end.max())
    if spec.max_length is not None and longest > spec.max_length:
        warnings.warn(
            f"max_new_tokens={config.max_new_tokens}: the longest row may reach {longest} tokens; "
            f"{spec.name} was made for {spec.max_length}, and its text beyond may be poor",
            stacklevel=4,
        )
    start = prompt_end // length * length if spec.block_grid == "absolute" else prompt_end
    limit = start + -(-(text_end - start) // length) * length
    window = 1 if spec.cache == "approximate" else strategy.window  # what refreshes it ends the window
    blocks = int(((limit - start) // length).max())
    window = blocks if spec.whole_answer else min(window, blocks)
    canvas = torch.full((len(ids), window * length), spec.mask_id)
    committed = torch.zeros(canvas.shape, dtype=torch.bool)
    for row, (prompt, first) in enumerate(zip(ids, start.tolist(), strict=True)):
        tail = prompt[first:]
        canvas[row, : len(tail)] = tail
        committed[row, : len(tail)] = True
    state = State(canvas, committed, torch.zeros_like(start), start, limit, torch.tensor(names), length)
    job = Job(
        spec=spec,
        strategy=strategy,
        config=config,
        sampler=Sampler(config.sampling, config.tape()),
        prompt_end=prompt_end.to(device),
        text_end=text_end.to(device),
    )
    heads = [prompt[:first].to(device) for prompt, first in zip(ids, start.tolist(), strict=True)]
    return job, state.map(lambda t: t.to(device)), heads
