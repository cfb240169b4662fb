"""A model family: how its checkpoints become targets, and what can be said of one before its weights are read."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
from torch import Tensor

from spotkit.loading import LoadOptions
from spotkit.protocols import Target
from spotkit.types import TargetSpec

from .base import computed_in
from .bidirectional import Bidirectional
from .block_causal import BlockCausal
from .configs import cache_of, generation_of, spec_of
from .files import fingerprint, load_model, load_tokenizer
from .presets import Presets, preferred
from .refreshed import Refreshed

Convert = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]


@attrs.frozen(eq=False)
class Build:
    """A checkpoint's model, as transformers builds it.

    Attributes:
        kind: transformers' class.
        config: its config.
        sizes: what that was made of, by transformers' names.
        names: patterns of the checkpoint's names of weights, and transformers' names for them; None if the same.
        convert: for checkpoints that also cut their weights otherwise: a weight under transformers' names.
    """

    kind: Any
    config: Any
    sizes: Mapping[str, Any]
    names: Mapping[str, str] | None = None
    convert: Convert | None = None


class Family(abc.ABC):
    """What all adapters share; a family fills in its facts.

    Attributes:
        title: what messages call it.
        caches: the caches its targets can have, the default first.
        kinds: names of the transformers classes that run it.
        mask_id: the mask token's id where neither config nor tokenizer nor options say.
        shift: 1 if the logits at a position score the token after it, else 0.
    """

    title: ClassVar[str]
    caches: ClassVar[tuple[str, ...]]
    kinds: ClassVar[tuple[str, ...]]
    mask_id: ClassVar[int | None] = None
    shift: ClassVar[int] = 0

    @classmethod
    @abc.abstractmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether `config.json` describes a model of the family."""

    @classmethod
    @abc.abstractmethod
    def build(cls, folder: Path, config: Mapping[str, Any]) -> Build:
        """The model of a checkpoint with this `config.json`; no weight is read.

        Raises:
            CheckpointError: the config is incomplete, or asks for what transformers' class does not do.
        """

    @classmethod
    @abc.abstractmethod
    def block_length(cls, config: Mapping[str, Any], cache: str) -> int | None:
        """Positions per block; None if the answer is one block."""

    @classmethod
    @abc.abstractmethod
    def presets(cls, name: str, cache: str) -> Presets:
        """How the family's official generator decodes a checkpoint of that name."""

    @classmethod
    def describe(
        cls, folder: Path, *, config: Mapping[str, Any], options: LoadOptions, build: Build, tokenizer: Any
    ) -> TargetSpec:
        """The spec of a checkpoint whose weights need not be there.

        Raises:
            ConfigError: a cache that the family does not have.
            CheckpointError: there is no sensible mask id.
        """
        cache = cache_of(options.cache, cls.caches, name=cls.title)
        return spec_of(
            folder,
            config,
            generation_of(folder),
            tokenizer,
            sizes=build.sizes,
            options=options,
            block_length=cls.block_length(config, cache),
            mask_id=cls.mask_id,
            full=cls.caches[0] == "none",
            cache=cache,
        )

    @classmethod
    def load(cls, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> Target:
        """The target in `folder` with its `config.json`.

        Raises:
            ConfigError: a cache that the family does not have.
            CheckpointError: a file is missing or damaged, or the checkpoint is of a kind not supported.
        """
        build, tokenizer = cls.build(folder, config), load_tokenizer(folder)
        spec = cls.describe(folder, config=config, options=options, build=build, tokenizer=tokenizer)
        spec = attrs.evolve(spec, fingerprint=fingerprint(folder, build.sizes))
        presets = preferred(folder, config, cls.presets(options.name, spec.variant))
        model = load_model(
            build.kind, folder, config=build.config, options=options, names=build.names, convert=build.convert
        )
        return cls.target(spec, model, tokenizer, options=options, presets=presets)

    @classmethod
    def target(
        cls, spec: TargetSpec, model: Any, tokenizer: Any, *, options: LoadOptions, presets: Presets
    ) -> Target:
        """The target over a loaded model, of the kind that its cache asks for."""
        kinds = {"exact": BlockCausal, "none": Bidirectional, "prefix": Refreshed, "dual": Refreshed}
        kind: Any = kinds[spec.variant]
        made: Target = kind(computed_in(spec, model), model, tokenizer, options.layout, cls.shift, presets)
        return made
