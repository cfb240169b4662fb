"""Targets as the commands use them: loaded without noise, and fed with text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from spotkit.errors import ConfigError
from spotkit.loading import load, tokenizer_of
from spotkit.protocols import Target

EMBEDDED_BLOCK_LENGTHS = (4, 8, 16, 32)
"""Those that the embedded model was trained for."""


def load_target(source: str, **options: Any) -> Target:
    """`spotkit.load`, without transformers' bars where they would only be noise."""
    if source == "embedded" or not sys.stderr.isatty():
        silence()
    return load(source, **options)


def lengths_for(source: str, given: Sequence[int] | None) -> tuple[int, ...]:
    """The block lengths that a drafter is made for, each once; none where the target's own is to be taken."""
    return tuple(dict.fromkeys(given or (EMBEDDED_BLOCK_LENGTHS if source == "embedded" else ())))


def own_length(target: Target) -> int:
    """The target's own block length, for a drafter that is to serve it.

    Raises:
        ConfigError: an answer of the target is one block of any length.
    """
    if target.spec.block_grid == "answer":
        raise ConfigError(
            f"--block-length: an answer of {target.spec.name} is one block of any length; say which ones the drafter "
            "is to serve"
        )
    return target.spec.block_length


def silence() -> None:
    """Turns transformers' bars off, and its reports on weights, of which the errors here say the same."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def encode(target: Target, text: str, *, raw: bool = False) -> list[int]:
    """The prompt's ids, put through the chat template unless `raw`.

    Raises:
        CheckpointError: the target has no tokenizer.
        ConfigError: its tokenizer has no chat template, or the text is none.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"prompt={text!r}: not UTF-8 text; convert it") from error
    tokenizer = tokenizer_of(target)
    if raw:
        return list(tokenizer.encode(text, add_special_tokens=False))
    if not tokenizer.chat_template:
        raise ConfigError(f"raw=False: the tokenizer of {target.spec.name} has no chat template; use --raw")
    message = [{"role": "user", "content": text}]
    return list(tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"])


def text_of(target: Target, tokens: Sequence[int]) -> str:
    """The text of new tokens, end token and the like left out."""
    text: str = tokenizer_of(target).decode(list(tokens), skip_special_tokens=True)
    return text
