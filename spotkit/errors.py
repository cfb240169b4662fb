"""Every error that spotkit raises on purpose; each text names the field, the value and the fix."""

from __future__ import annotations


class SpotkitError(Exception):
    """Base of all errors raised by spotkit."""


class ConfigError(SpotkitError, ValueError):
    """An option, prompt or combination of parts that cannot be decoded as asked."""


class UnknownNameError(SpotkitError, LookupError):
    """A name that no installed entry point provides."""


class CheckpointError(SpotkitError):
    """A checkpoint that is missing, incomplete, or not what its `config.json` says."""


class MismatchError(ConfigError):
    """A drafter, tokenizer or context that was made for another target."""


class PartError(SpotkitError):
    """A target, rule, drafter or acceptance rule returned something that its protocol does not allow."""


class DraftError(PartError):
    """A drafter returned something that is not a draft of the state it was given."""


class NonFiniteLogitsError(SpotkitError, ArithmeticError):
    """The target returned NaN, plus infinity, or no finite logit at a position that has to be decided."""


class StalledError(SpotkitError):
    """A decoding rule committed nothing although positions were open."""
