"""The order model: which open position commits next, read off the target's stale distributions alone.

Source: SPOT (arXiv 2610.22543) for the inputs and sizes. Its loss and tree are not public; ours are one
call per pass, whose output scores every later step too: a base score per position, and for every pair of
positions what committing the first adds to the score of the second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import attrs
import torch
from attrs.validators import deep_iterable
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spotkit.errors import CheckpointError, ConfigError
from spotkit.fields import instance, positive
from spotkit.outlook import LIMIT, TOP, Expectation, log_odds
from spotkit.types import Evidence, State

_FORMAT = 1
_MOST_LAYERS = 64
PLACES = 96
"""Canvas positions told apart: three blocks of 32."""


def _lengths(value: Iterable[int]) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"block_lengths, windows: {value!r}; give a sequence of integers")
    return tuple(value)


@attrs.frozen
class OrderConfig:
    """Sizes of an order model and what it was made for."""

    block_lengths: tuple[int, ...] = attrs.field(converter=_lengths, validator=deep_iterable(positive))
    """Block lengths it was trained on; it serves no other."""
    windows: tuple[int, ...] = attrs.field(converter=_lengths, validator=deep_iterable(positive))
    """Most blocks it was trained to see, for each block length."""
    vocab_size: int = attrs.field(validator=positive)
    target: str = attrs.field(default="", validator=instance(str))
    """Fingerprint of the target it was trained on."""
    width: int = attrs.field(default=128, validator=positive)
    layers: int = attrs.field(default=3, validator=positive)
    heads: int = attrs.field(default=8, validator=positive)
    pair_rank: int = attrs.field(default=16, validator=positive)

    def __attrs_post_init__(self) -> None:
        if not self.block_lengths or len(self.block_lengths) != len(self.windows):
            raise ConfigError(f"windows={self.windows}: give one for each of block_lengths={self.block_lengths}")
        for length, window in zip(self.block_lengths, self.windows, strict=True):
            if length * window > PLACES:
                raise ConfigError(
                    f"windows={self.windows}: {window} blocks of {length} are {length * window} positions; an order "
                    f"model tells {PLACES} apart, so take shorter blocks or fewer"
                )
        if self.layers > _MOST_LAYERS:
            raise ConfigError(f"layers={self.layers}: give at most {_MOST_LAYERS}")
        if self.width % self.heads:
            raise ConfigError(f"heads={self.heads}: must divide width={self.width}")

    def window(self, block_length: int) -> int:
        """Most blocks of that length it was trained to see."""
        return self.windows[self.block_lengths.index(block_length)]


@attrs.frozen(eq=False)
class OrderInputs:
    """What the order model reads at one pass."""

    top: Tensor
    """The largest stale log-probs of each position, in descending order `[B, N, TOP]`."""
    first: Tensor
    """Log-odds of each position's best token `[B, N]`; `top` may be rounded, and near 1 that would hide it."""
    log_odds: Tensor
    """Log-odds of the confidence each position would have at the next step `[B, N]`."""
    flags: Tensor
    """Open and next to be decided; open, later; committed before the evidence; since `[B, N, 4]`."""
    block_length: int


@attrs.frozen(eq=False)
class OrderScores:
    """What the order model answers."""

    residual: Tensor
    """Added to the scaled log-odds of the confidence: Plackett-Luce scores of the commit order `[B, N]`."""
    shifts: Tensor
    """Added to the score of the second position once the first has committed `[B, N, N]`."""
    held: Tensor
    """Logit that the stale token is the one committed, and its change per log step ahead `[B, N, 2]`."""


def inputs_of(state: State, *, evidence: Evidence, seen: Expectation) -> OrderInputs:
    """Gathers the model's inputs from what the target has said."""
    raw = evidence.logprobs
    top = raw.topk(min(TOP, raw.shape[-1]), dim=-1).values
    top = torch.nn.functional.pad(top, (0, TOP - top.shape[-1]), value=-math.inf)
    active = state.active
    later = ~state.committed & state.exists & evidence.known & ~active
    since = state.committed & ~evidence.committed
    flags = torch.stack([active, later, state.committed & evidence.committed, since], -1)
    known = evidence.known.unsqueeze(-1)
    return OrderInputs(
        top=top.float().clamp(-30.0, 0.0).masked_fill(~known, -30.0),
        first=log_odds(top[..., 0]).float().masked_fill(~evidence.known, 0.0),
        log_odds=seen.log_odds[:, 0].float().masked_fill(~evidence.known, 0.0),
        flags=flags,
        block_length=state.block_length,
    )


class OrderModel(nn.Module):
    """A small bidirectional transformer over the canvas positions."""

    def __init__(self, config: OrderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.read = nn.Linear(TOP + 4 + 4 + 2, width)
        self.place = nn.Embedding(PLACES, width)
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.answer = nn.Linear(width, 3 + 2 * config.pair_rank)
        self.near = nn.Parameter(torch.zeros(2 * PLACES - 1))
        self.scale = nn.Parameter(torch.tensor(1.5))
        nn.init.zeros_(self.answer.weight)
        nn.init.zeros_(self.answer.bias)
        nn.init.normal_(self.answer.weight[3:], std=0.02)

    def forward(self, inputs: OrderInputs) -> OrderScores:
        """Scores every position of the canvas; one call serves the whole tree."""
        top = inputs.top
        odds = inputs.log_odds / LIMIT
        entropy = -(top.exp() * top).sum(-1)
        margin = top[..., 0] - top[..., 1]
        first = inputs.first / LIMIT
        plain = torch.stack([odds, first, entropy, margin / 30.0], -1)
        count = top.shape[1]
        places = torch.arange(count, device=top.device)
        block = places.div(inputs.block_length, rounding_mode="floor").to(top.dtype)
        grid = torch.stack([block, torch.full_like(block, math.log2(inputs.block_length) / 5.0)], -1)
        known = [top / 10.0 + 1.0, plain, inputs.flags.to(top.dtype), grid.expand(top.shape[0], -1, -1)]
        hidden = self.layers(self.read(torch.cat(known, -1)) + self.place(places))
        answer = self.answer(hidden)
        rank = self.config.pair_rank
        givers, takers = answer[..., 3 : 3 + rank], answer[..., 3 + rank :]
        distance = places.unsqueeze(0) - places.unsqueeze(1) + PLACES - 1
        shifts = givers @ takers.mT + self.near[distance]
        return OrderScores(residual=answer[..., 0], shifts=shifts, held=answer[..., 1:3])

    @property
    def parameter_count(self) -> int:
        """Number of weights."""
        return sum(p.numel() for p in self.parameters())

    def save_pretrained(self, path: str | Path, *, about: dict[str, Any] | None = None) -> None:
        """Writes `drafter.json` and `drafter.safetensors` into the folder `path`.

        `about` is kept beside the sizes: what was measured when it was trained.
        """
        path = Path(path)
        path.mkdir(parents=True, exist_ok=True)
        weights = {k: v.to(torch.bfloat16).contiguous() for k, v in self.state_dict().items()}
        save_file(weights, path / "drafter.safetensors")
        fields = {"kind": "spot", "format": _FORMAT, **attrs.asdict(self.config), "about": about or {}}
        (path / "drafter.json").write_text(json.dumps(fields, indent=1) + "\n")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Self:
        """Reads what `save_pretrained` wrote.

        Raises:
            CheckpointError: files are missing, damaged, or of another kind.
        """
        path = Path(path)
        try:
            fields = json.loads((path / "drafter.json").read_text())
            weights = load_file(path / "drafter.safetensors")
        except Exception as error:
            raise CheckpointError(
                f"drafter={str(path)!r}: cannot be read ({error}); train one with `spotkit train-drafter`"
            ) from error
        if not isinstance(fields, dict) or fields.get("kind") != "spot" or fields.get("format") != _FORMAT:
            raise CheckpointError(f"drafter={str(path)!r}: not a SPOT drafter of format {_FORMAT}; train it anew")
        names = {f.name for f in attrs.fields(OrderConfig)}
        try:
            with torch.device("meta"):  # fresh weights would draw from the global generator
                model = cls(OrderConfig(**{k: v for k, v in fields.items() if k in names}))
            model.load_state_dict({k: v.float() for k, v in weights.items()}, assign=True)
        except (TypeError, RuntimeError, ConfigError) as error:
            raise CheckpointError(f"drafter={str(path)!r}: weights and sizes disagree: {error}") from error
        return model.eval()
