from __future__ import annotations

import json
import string

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner

from spotkit import embedded
from spotkit.loading import load
from spotkit.strategies.order_model import OrderConfig, OrderModel

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + ' ' + m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
BLOCK_LENGTHS = (4, 8, 16)


def write_model(folder):
    """A tiny SDAR checkpoint with random weights, whose tokens are single characters."""
    folder.mkdir(parents=True)
    vocabulary = {
        token: i for i, token in enumerate([*SPECIAL, *string.ascii_letters, *string.digits, *" .,?:=+-*/'"])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        mask_token="<|MASK|>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    sizes = {
        "vocab_size": len(vocabulary), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }  # fmt: skip
    extra = {"rope_theta": 10000.0, "max_position_embeddings": 4096, "attention_bias": False, "hidden_act": "silu"}
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, "mask_token_id": 3}
    config = {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "block_size": 4, "torch_dtype": "float32"}
    own = {"rope_scaling": None, "spotkit": {"preset": "low_confidence_static", "temperature": 0.0}}
    (folder / "config.json").write_text(json.dumps({**config, **sizes, **extra, **ids, **own}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "pad_token_id": 0}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, **extra))
    weights = {k: 8 * v if v.ndim > 1 else v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A folder like the one the embedded model ships in."""
    folder = tmp_path_factory.mktemp("embedded")
    write_model(folder / "model")
    spec = load(folder / "model").spec
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = OrderConfig(
            BLOCK_LENGTHS, (2,) * len(BLOCK_LENGTHS), spec.vocab_size, spec.fingerprint, width=16, layers=1, heads=2
        )
        OrderModel(config).save_pretrained(folder / "drafter")
    problems = [{"question": f"Ana has {n} pears.", "solution": f"Answer: {n}", "answer": n} for n in range(5)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    return folder


@pytest.fixture
def model(home):
    """Folder of a tiny checkpoint."""
    return str(home / "model")


@pytest.fixture
def tiny(home, monkeypatch):
    """The embedded model replaced by a tiny one."""
    monkeypatch.setattr(embedded, "_HERE", home)
    return home


@pytest.fixture
def spotkit():
    """Runs a command in this process."""
    from spotkit.cli.app import app

    def run(*arguments, **options):
        return CliRunner().invoke(app, [str(a) for a in arguments], **options)

    return run
