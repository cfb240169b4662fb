"""A model family: how its checkpoints become targets, and what can be said of one before its weights are read."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import attrs

from spotkit.errors import ConfigError, SpotkitError
from spotkit.inspection import Inspection
from spotkit.options import LoadOptions
from spotkit.protocols import Target
from spotkit.types import TargetSpec

from .base import computed_in
from .bidirectional import Bidirectional
from .block_causal import BlockCausal
from .configs import cache_of, generation_of, spec_of
from .files import Build, fingerprint, headers, load_model, load_tokenizer, outline, weight_files
from .presets import Presets, preferred
from .refreshed import Refreshed

T = TypeVar("T")


def told(faults: list[str], function: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
    """What `function` returns; None if it fails, and then what it says is added to `faults`."""
    try:
        return function(*arguments, **options)
    except SpotkitError as error:
        faults.append(str(error))
        return None


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
    def presets(cls, options: LoadOptions, cache: str) -> Presets:
        """How the family's official generator decodes a checkpoint loaded like that."""

    @classmethod
    def describe(
        cls,
        origin: str | Path,
        *,
        config: Mapping[str, Any],
        generation: Mapping[str, Any],
        sizes: Mapping[str, Any],
        options: LoadOptions,
        tokenizer: Any,
    ) -> TargetSpec:
        """The spec of a model whose weights need not be there; see `spec_of`.

        Raises:
            ConfigError: a cache that the family does not have.
            CheckpointError: there is no sensible mask id.
        """
        cache = cache_of(options.cache, cls.caches, name=cls.title)
        return spec_of(
            origin,
            config,
            generation,
            tokenizer,
            sizes=sizes,
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
        spec = cls.describe(
            folder,
            config=config,
            generation=generation_of(folder),
            sizes=build.sizes,
            options=options,
            tokenizer=tokenizer,
        )
        spec = attrs.evolve(spec, fingerprint=fingerprint(folder, build.sizes))
        presets = preferred(folder, config, cls.presets(options, spec.variant))
        model = load_model(build, folder, options=options)
        return cls.target(spec, model, tokenizer, options=options, presets=presets)

    @classmethod
    def adapt(cls, model: Any, *, tokenizer: Any, options: LoadOptions) -> Target:
        """The target over a model that is loaded already.

        Raises:
            ConfigError: a model of another class, or a cache that the family does not have.
            CheckpointError: there is no sensible mask id.
        """
        if not any(k.__name__ in cls.kinds and k.__module__.startswith("transformers.") for k in type(model).__mro__):
            raise ConfigError(
                f"model={type(model).__name__}: {cls.title} runs on transformers' own {' or '.join(cls.kinds)}; load "
                "the checkpoint into that class, or with spotkit.load"
            )
        config = model.config.to_dict()
        known = getattr(model, "generation_config", None)
        generation = {} if known is None else known.to_dict()
        spec = cls.describe(
            options.name, config=config, generation=generation, sizes=config, options=options, tokenizer=tokenizer
        )
        presets = preferred(options.name, config, cls.presets(options, spec.variant))
        return cls.target(spec, model, tokenizer, options=options, presets=presets)

    @classmethod
    def inspect(cls, folder: Path, *, config: Mapping[str, Any], options: LoadOptions) -> Inspection:
        """What the checkpoint in `folder` is; faults are told, not raised."""
        faults: list[str] = []
        build = told(faults, cls.build, folder, config)
        tokenizer = told(faults, load_tokenizer, folder)
        weights = told(faults, lambda: list(headers(folder))) or []
        spec = model = None
        presets: Presets | None = None
        if build is not None:
            spec = told(
                faults,
                cls.describe,
                folder,
                config=config,
                generation=told(faults, generation_of, folder) or {},
                sizes=build.sizes,
                options=options,
                tokenizer=tokenizer,
            )
        if build is not None and weights:
            model = told(faults, outline, build, dict(weights), origin=folder)
        if spec is not None:
            presets = told(faults, preferred, folder, config, cls.presets(options, spec.variant))
        stored: dict[str, int] = {}
        for _, weight in weights:
            kind = str(weight.dtype).removeprefix("torch.")
            stored[kind] = stored.get(kind, 0) + weight.nbytes
        return Inspection(
            adapter=cls.title,
            folder=str(folder),
            model=build.kind.__name__ if build else "",
            sizes=build.sizes if build else {},
            parameters=sum(p.numel() for p in model.parameters()) if model is not None else None,
            files=len(weight_files(folder)) if weights else 0,
            stored=stored,
            spec=spec,
            caches=cls.caches,
            presets=presets or {},
            tokenizer=tokenizer is not None,
            chat_template=bool(getattr(tokenizer, "chat_template", None)),
            faults=tuple(faults),
        )

    @classmethod
    def target(
        cls, spec: TargetSpec, model: Any, tokenizer: Any, *, options: LoadOptions, presets: Presets
    ) -> Target:
        """The target over a loaded model, of the kind that its cache asks for."""
        kinds = {"exact": BlockCausal, "none": Bidirectional, "prefix": Refreshed, "dual": Refreshed}
        kind: Any = kinds[spec.variant]
        made: Target = kind(computed_in(spec, model), model, tokenizer, options.layout, cls.shift, presets)
        return made
