"""Targets over models that somebody else has loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import spotkit
from spotkit.build import strategy
from spotkit.errors import CheckpointError, ConfigError, PartError, UnknownNameError
from spotkit.loading import load
from spotkit.logprobs import Sampling
from spotkit.loop import decode
from spotkit.registry import ADAPTERS
from spotkit.settings import DecodeConfig

CHECKPOINTS = Path(__file__).parent.parent / "data" / "conformance" / "checkpoints"
MASKS = {"sdar": 119, "llada": 127, "llada_moe": 139, "llada2": 131, "dream": 129, "fast_dllm_v2": 123}


def built(name: str, attention: str = "sdpa") -> Any:
    """The model of a checkpoint, as a user has it who loaded it by other means."""
    return load(CHECKPOINTS / name, dtype="float32", mask_id=MASKS[name], attn_implementation=attention).model


def written(target: Any, temperature: float) -> list[tuple[Any, ...]]:
    made = strategy("freedave", target=target, rule="static")
    config = DecodeConfig(max_new_tokens=9, sampling=Sampling(temperature))
    result = decode(target, [[1, 2, 3, 4, 5], [7, 8]], strategy=made, config=config)
    assert result.stats.drafted > 0
    return [(row.tokens, row.log) for row in result.rows]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", sorted(MASKS))
def test_an_adapted_model_writes_what_a_loaded_one_does(name: str, attention: str) -> None:
    options = {"block_length": 4, "mask_id": MASKS[name]}
    loaded = load(CHECKPOINTS / name, dtype="float32", **options)
    adapted = spotkit.adapt(built(name, attention), adapter=name, **options)
    assert type(adapted) is type(loaded)
    for temperature in (0.0, 1.0):
        assert written(adapted, temperature) == written(loaded, temperature)
    for field in ("vocab_size", "mask_id", "block_length", "block_grid", "attention", "cache", "variant", "dtype"):
        assert getattr(adapted.spec, field) == getattr(loaded.spec, field), field
    assert adapted.spec.fingerprint == ""
    assert list(adapted.presets) == list(loaded.presets)


def test_a_config_that_says_its_family_needs_no_name() -> None:
    """transformers keeps `model_type` and mask id of a config that it reads from an SDAR folder."""
    content = json.loads((CHECKPOINTS / "sdar/config.json").read_text())
    config = Qwen3Config(**{k: v for k, v in content.items() if k != "auto_map"})
    config.model_type = "sdar"
    model = Qwen3ForCausalLM(config).eval()
    target = spotkit.adapt(model)
    assert (target.spec.mask_id, target.spec.block_length, target.spec.eos_ids) == (119, 4, (118,))


def test_the_tokenizer_tells_mask_and_limit(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    words = {f"w{i}": i for i in range(100)} | {"<mask>": 100}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), mask_token="<mask>"
    )
    target = spotkit.adapt(built("llada"), tokenizer=tokenizer, adapter="llada")
    assert (target.spec.mask_id, target.spec.token_limit) == (100, 101)
    assert target.tokenizer is tokenizer


def test_which_cache_it_runs_under() -> None:
    target = spotkit.adapt(built("llada"), adapter="llada", cache="dual", mask_id=127, block_length=4)
    assert decode(target, [[1, 2]], config=DecodeConfig(max_new_tokens=4)).cache == "dual"


def test_how_long_the_parts_of_a_block_are() -> None:
    options = {"adapter": "fast_dllm_v2", "mask_id": MASKS["fast_dllm_v2"], "cache": "block", "block_length": 8}
    target = spotkit.adapt(built("fast_dllm_v2"), span=4, **options)
    assert (target.span, target.presets["threshold"].rule.span) == (4, 4)
    with pytest.raises(ConfigError, match="span=4: only cache='block' makes use of it"):
        spotkit.adapt(built("fast_dllm_v2"), span=4, **{**options, "cache": "exact"})


def flash(model: Any) -> None:
    model.config._attn_implementation_internal = "flash_attention_2"


@pytest.mark.parametrize(
    ("change", "options", "kind", "words"),
    [
        (lambda m: m.train(), {}, ConfigError, "call model.eval()"),
        (
            lambda m: setattr(m.config, "_attn_implementation_internal", "flash_attention_2"),
            {},
            ConfigError,
            "takes no",
        ),
        (
            lambda m: None,
            {"adapter": "dream"},
            ConfigError,
            "LlamaForCausalLM: Dream runs on transformers' own Qwen2",
        ),
        (lambda m: None, {"adapter": "lada"}, UnknownNameError, "Did you mean 'llada'?"),
        (lambda m: None, {"adapter": None}, UnknownNameError, "say which with adapter="),
        (lambda m: None, {"cache": "exact"}, ConfigError, "cache='exact': LLaDA has none, prefix, dual"),
        (lambda m: None, {"cache": "paged"}, ConfigError, "cache='paged': choose one of"),
        (lambda m: None, {"mask_id": 500}, CheckpointError, "mask_token_id=500"),
        (lambda m: None, {"mask_id": -1}, ConfigError, "mask_id=-1"),
        (lambda m: None, {"block_length": 0}, ConfigError, "block_length=0"),
        (lambda m: None, {"layout": "heap"}, ConfigError, "layout='heap'"),
    ],
)
def test_models_that_cannot_be_adapted(change: Any, options: dict[str, Any], kind: type, words: str) -> None:
    model = built("llada")
    change(model)
    with pytest.raises(kind) as error:
        spotkit.adapt(model, **{"adapter": "llada", "mask_id": 127, **options})
    assert words in str(error.value)


@pytest.mark.parametrize("model", [None, "sdar", LlamaForCausalLM, torch.nn.Linear(2, 2)])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(ConfigError, match="give a loaded transformers language model"):
        spotkit.adapt(model, adapter="llada")


def test_subclasses_are_models_of_the_family_and_lookalikes_are_not() -> None:
    class Mine(Qwen2ForCausalLM):
        """A user's own head, say."""

    model = built("dream")
    model.__class__ = Mine
    assert spotkit.adapt(model, adapter="dream", mask_id=129).spec.mask_id == 129
    model.__class__ = type("Qwen2ForCausalLM", (torch.nn.Module,), {"get_input_embeddings": lambda self: None})
    with pytest.raises(ConfigError, match="runs on transformers' own"):
        spotkit.adapt(model, adapter="dream", mask_id=129)


def test_an_adapter_that_adapts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADAPTERS, "_added", dict(ADAPTERS._added))
    monkeypatch.setattr(ADAPTERS, "failures", {})
    ADAPTERS.register("loader_only", SimpleNamespace(matches=lambda config: False, load=lambda *a, **k: None))
    with pytest.raises(PartError, match=r"adapter='loader_only': has no adapt\(\)"):
        spotkit.adapt(built("llada"), adapter="loader_only")
    ADAPTERS.register("loader_only", SimpleNamespace(adapt=lambda *a, **k: 5), override=True)
    with pytest.raises(PartError, match="must return a target, got int"):
        spotkit.adapt(built("llada"), adapter="loader_only")
