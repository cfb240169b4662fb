"""Targets over models that somebody else has loaded."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from spotkit.errors import ConfigError, PartError
from spotkit.loading import adapter_for
from spotkit.options import LoadOptions
from spotkit.protocols import Target

_ATTENTION = ("sdpa", "eager")


@runtime_checkable
class Adapting(Protocol):
    """An adapter that takes a loaded model."""

    def adapt(self, model: Any, *, tokenizer: Any, options: LoadOptions) -> Target:
        """The target over `model`."""
        ...


def adapt(
    model: Any,
    *,
    tokenizer: Any = None,
    adapter: str | None = None,
    block_length: int | None = None,
    layout: Literal["tree", "batch"] = "tree",
    cache: str | None = None,
    span: int | None = None,
    mask_id: int | None = None,
) -> Target:
    """The target over a transformers model that is loaded already, whoever did so and how.

    Nothing about the model is changed. A drafter cannot tell its weights, so one trained for another target is not
    refused.

    Args:
        model: an instance of the transformers class that the family runs on.
        tokenizer: its tokenizer, if text is to be encoded and decoded.
        adapter: the model family; by default the adapter that knows the model's config. Several families run on the
            same class, so a config that does not say of which it is needs this.
        block_length: see `spotkit.load`.
        layout: the same.
        cache: the same.
        span: the same.
        mask_id: the same.

    Raises:
        ConfigError: a model of another class or in training mode, an attention that takes no masks of its own, or an
            option with a value that it cannot have.
        CheckpointError: there is no sensible mask id.
        UnknownNameError: no installed adapter knows the model.
        PartError: the adapter takes no loaded models, or returned something else than a target.
    """
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(model, "get_input_embeddings"):
        raise ConfigError(f"model={type(model).__name__}: give a loaded transformers language model")
    if model.training:
        raise ConfigError("model: is in training mode, where dropout changes every pass; call model.eval()")
    attention = getattr(config, "_attn_implementation", None)
    if attention not in _ATTENTION:
        raise ConfigError(
            f"attn_implementation={attention!r}: takes no mask of who sees whom; use "
            f"model.set_attn_implementation('sdpa') or 'eager'"
        )
    name = getattr(config, "_name_or_path", "") or type(model).__name__
    options = LoadOptions(
        str(name).rstrip("/").rpartition("/")[2],
        block_length=block_length,
        layout=layout,
        cache=cache,
        span=span,
        mask_id=mask_id,
        attn_implementation=attention,
    )
    known, family = adapter_for(config.to_dict(), type(model).__name__, adapter)
    if not isinstance(family, Adapting):
        raise PartError(f"adapter={known!r}: has no adapt(), so it takes no loaded models; use spotkit.load")
    target = family.adapt(model, tokenizer=tokenizer, options=options)
    if not isinstance(target, Target):
        raise PartError(f"adapter.adapt: {family!r} must return a target, got {type(target).__name__}")
    return target
