"""Trains the embedded model: a two-million-parameter block-diffusion language model in SDAR's layout.

Deterministic from the seed (for one machine and thread count) and resumable: run the same command again
and it goes on from the last checkpoint.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import torch
import typer
from data import attention, batch_of_step
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_file
from tokenizer import load_tokenizer, save_tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from spotkit.training.checkpoint import resume_training, save_training

SIZES = dict(
    hidden_size=160,
    intermediate_size=448,
    num_hidden_layers=6,
    num_attention_heads=5,
    num_key_value_heads=5,
    head_dim=32,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
)


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz, all matrices of one shape at once, in float32.

    torch's own Muon iterates in bfloat16, one matrix after the other; on a CPU without bfloat16 units that
    takes a quarter of the step. Same iteration and coefficients (Jordan et al., 2024).
    """

    def __init__(self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                shapes.setdefault(tuple(p.shape), []).append(p)
            for params in shapes.values():
                self._step_shape(params, group)

    def _step_shape(self, params: list[Tensor], group: dict) -> None:
        updates = []
        for p in params:
            buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
            buffer.lerp_(p.grad, 1 - group["momentum"])
            updates.append(p.grad.lerp(buffer, group["momentum"]))
        x = torch.stack(updates)
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        x = x.mT if tall else x
        scale = group["lr"] * max(1.0, x.shape[1] / x.shape[2]) ** 0.5
        for p, update in zip(params, x, strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)


def build(vocab_size: int, seed: int) -> Qwen3ForCausalLM:
    """A model with fresh weights."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocab_size, attn_implementation="sdpa", **SIZES))


def sdar_config(tokenizer) -> dict:
    """`config.json` in SDAR's layout."""
    return {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        **SIZES,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": 16,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "mask_token_id": tokenizer.mask_token_id,
        "hidden_act": "silu",
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": len(tokenizer),
        "spotkit": {"preset": "low_confidence_static", "temperature": 0.0},
    }


def loss_of(model: Qwen3ForCausalLM, batch) -> Tensor:
    """Mean cross-entropy (nats) over the hidden positions, digits weighted."""
    mask, positions = attention(batch.length, batch.block_length)
    hidden = model.model(
        input_ids=batch.ids, attention_mask=mask, position_ids=positions, use_cache=False
    ).last_hidden_state[:, batch.length :]
    chosen = batch.weights > 0
    logits = model.lm_head(hidden[chosen])
    losses = torch.nn.functional.cross_entropy(logits, batch.targets[chosen], reduction="none")
    weights = batch.weights[chosen]
    return (losses * weights).sum() / weights.sum()


def rate(step: int, steps: int) -> float:
    """Learning-rate factor: 50 steps of warm-up, then constant, then down to zero over the last 30%."""
    return min(1.0, (step + 1) / 50, max(0.0, (steps - step) / (0.3 * steps)))


def export(model: Qwen3ForCausalLM, tokenizer, out: Path) -> None:
    """Writes the checkpoint: bfloat16 weights, SDAR's config and generation config."""
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(sdar_config(tokenizer), indent=1) + "\n")
    generation = {"eos_token_id": [tokenizer.eos_token_id], "pad_token_id": tokenizer.pad_token_id}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def main(
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint.")] = Path("embedded"),
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 3400,
    rows: Annotated[int, typer.Option(help="Texts per step.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of corpus, weights and noise.")] = 0,
    matrix_lr: Annotated[float, typer.Option(help="Learning rate of the matrices (Muon).")] = 0.02,
    vector_lr: Annotated[float, typer.Option(help="Learning rate of embeddings and norms (AdamW).")] = 3e-3,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 100,
    compile: Annotated[bool, typer.Option(help="Compile the model: a third faster after some minutes.")] = True,
) -> None:
    """Trains and exports the embedded model; the same command resumes an interrupted run."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        save_tokenizer(out, seed)
    tokenizer = load_tokenizer(out)
    model = build(len(tokenizer), seed)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        Muon(matrices, lr=matrix_lr),
        torch.optim.AdamW(others, lr=vector_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    if compile:
        model.model.compile(dynamic=False)
    state = out / "training.safetensors"
    start = resume_training(state, model, optimizers)
    bases = [matrix_lr, vector_lr]
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    mean = math.nan
    with Progress(*columns) as progress:
        bar = progress.add_task("loss  -", total=steps, completed=start)
        for step in range(start, steps):
            for optimizer, base in zip(optimizers, bases, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = base * rate(step, steps)
            loss = loss_of(model, batch_of_step(tokenizer, seed=seed, step=step, rows=rows))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            mean = loss.item() if math.isnan(mean) else 0.98 * mean + 0.02 * loss.item()
            progress.update(bar, advance=1, description=f"loss {mean:.4f}")
            if (step + 1) % save_every == 0 or step + 1 == steps:
                save_training(state, model, optimizers, step=step + 1)
                export(model, tokenizer, out)
                progress.console.log(f"step {step + 1}: loss {mean:.4f}")


if __name__ == "__main__":
    typer.run(main)
