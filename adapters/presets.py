"""The official decoding rules of the families, with the defaults of their generators.

Where the rules differ: whether a confidence may equal the threshold, what commits when none passes, and which
distribution a confidence is read from. Every schedule takes one step per position unless a source says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from spotkit.errors import CheckpointError
from spotkit.logprobs import Sampling
from spotkit.presets import Preset
from spotkit.rules import Measure, Ordered, Sequential, Static, Threshold
from spotkit.settings import DecodeConfig

Presets = Mapping[str, Preset]

SPAN = 8
"""Positions per part of a Fast-dLLM v2 block (`small_block_size`)."""


def sdar(name: str) -> Presets:
    """SDAR `generate.py`; for TraDo, which is told by its name, dLLM-RL `configs/trado_eval.yaml`."""
    trado = "trado" in name.lower()
    source = "dLLM-RL configs/trado_eval.yaml" if trado else "SDAR generate.py"
    config = DecodeConfig(max_new_tokens=128, sampling=Sampling(1.0))
    dynamic = Threshold(0.9 if trado else 0.85, comparator=">", fallback="quota", confidence="filtered")
    return {
        "low_confidence_dynamic": Preset(dynamic, config, source),
        "low_confidence_static": Preset(Static(confidence="filtered"), config, source),
        "sequential": Preset(Sequential(), config, source),
    }


def llada() -> Presets:
    """LLaDA `README.md` and `generate.py`; the threshold is Fast-dLLM's."""
    config = DecodeConfig(max_new_tokens=128, sampling=Sampling(0.0))
    faster = Threshold(0.9, comparator=">=", fallback="best")
    return {
        "low_confidence": Preset(Static(), config, "LLaDA generate.py"),
        "threshold": Preset(faster, config, "Fast-dLLM llada/generate.py"),
    }


def llada2() -> Presets:
    """LLaDA2.0-mini's model card and `modeling_llada2_moe.py`."""
    config = DecodeConfig(max_new_tokens=512, sampling=Sampling(0.0))
    rule = Threshold(0.95, comparator=">", fallback="quota", confidence="filtered")
    return {"threshold": Preset(rule, config, "LLaDA2.0 modeling_llada2_moe.py")}


def dream(name: str, cache: str) -> Presets:
    """Dream `README.md` and `generation_utils.py`; for DiffuCoder, which is told by its name, its demo.

    With a cache, Fast-dLLM's `generation_utils_block.py`, which knows one rule.
    """
    greedy = DecodeConfig(max_new_tokens=256, sampling=Sampling(0.0))
    if cache != "none":
        inner = Threshold(0.9, comparator=">=", fallback="best", confidence="filtered")
        source = "Fast-dLLM dream/model/generation_utils_block.py"
        return {"confidence_threshold": Preset(Ordered(inner, lead=True), greedy, source)}
    coder = "diffucoder" in name.lower()
    config = DecodeConfig(max_new_tokens=256 if coder else 512, sampling=Sampling(0.3 if coder else 0.2, top_p=0.95))
    source = "DiffuCoder README.md" if coder else "Dream README.md"
    measures: dict[str, Measure] = {"entropy": "entropy", "maskgit_plus": "probability", "topk_margin": "margin"}
    faster = Threshold(
        0.9, comparator=">=", fallback="best", steps_per_block=8, confidence="filtered", most="schedule"
    )
    return {
        **{
            algorithm: Preset(Static(confidence="filtered", measure=measure, schedule="linear"), config, source)
            for algorithm, measure in measures.items()
        },
        "confidence_threshold": Preset(faster, greedy, "Fast-dLLM dream/model/generation_utils.py"),
    }


def fast_dllm_v2(span: int = SPAN) -> Presets:
    """Fast-dLLM v2 `generation_functions.py`."""
    config = DecodeConfig(max_new_tokens=2048, sampling=Sampling(0.0, top_p=0.95))
    inner = Threshold(0.95, comparator=">", fallback="best", confidence="filtered")
    return {"threshold": Preset(Ordered(inner, lead=True, span=span), config, "Fast-dLLM v2 generation_functions.py")}


def preferred(origin: str | Path, config: Mapping[str, Any], known: Presets) -> Presets:
    """The presets, the one that the checkpoint's `config.json` prefers first.

    The entry is `"spotkit": {"preset": NAME, "temperature": T, "max_new_tokens": N}`, each part optional.

    Raises:
        CheckpointError: it names something that there is not.
    """
    entry = config.get("spotkit")
    if entry is None:
        return known
    said = entry if isinstance(entry, Mapping) else {"spotkit": entry}
    name = said.get("preset", next(iter(known)))
    if set(said) - {"preset", "temperature", "max_new_tokens"} or not isinstance(name, str) or name not in known:
        raise CheckpointError(
            f"{origin}: config.json has spotkit={entry!r}; it may hold preset (one of {', '.join(known)}), "
            "temperature and max_new_tokens"
        )
    default = known[name].config
    try:
        sampling = attrs.evolve(default.sampling, temperature=said.get("temperature", default.sampling.temperature))
        length = said.get("max_new_tokens", default.max_new_tokens)
        chosen = attrs.evolve(default, sampling=sampling, max_new_tokens=length)
    except ValueError as error:
        raise CheckpointError(f"{origin}: config.json has spotkit={entry!r} ({error})") from error
    first = {name: attrs.evolve(known[name], config=chosen)}
    return first | {other: preset for other, preset in known.items() if other != name}
