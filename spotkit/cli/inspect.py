"""`spotkit inspect`: what a checkpoint is, before it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from spotkit.logprobs import Sampling


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
