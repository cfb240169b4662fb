"""Training states on disk: weights, optimizer slots and step in one safetensors file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from spotkit.errors import CheckpointError


def save_training(path: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, step: int) -> None:
    """Writes the state after `step` steps; an interrupted write leaves the old file."""
    tensors = {f"model/{name}": p for name, p in model.named_parameters()}
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    for i, optimizer in enumerate(optimizers):
        for parameter, slots in optimizer.state.items():
            tensors |= {f"{i}/{names[parameter]}/{slot}": value for slot, value in slots.items()}
    temporary = path.with_suffix(".tmp")
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, temporary, metadata={"step": str(step)})
    temporary.replace(path)


def resume_training(path: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Restores what `save_training` wrote; the number of steps done, 0 if there is no file.

    Raises:
        CheckpointError: the file is damaged, or of another model.
    """
    if not path.exists():
        return 0
    try:
        return _restore(path, model, optimizers)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); delete it to start the fit afresh") from error


def _restore(path: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    parameters = dict(model.named_parameters())
    with safe_open(path, "pt") as file:
        for key in file.keys():  # noqa: SIM118 - not a mapping
            where, _, name = key.partition("/")
            if where == "model":
                parameters[name].data.copy_(file.get_tensor(key))
            else:
                name, _, slot = name.rpartition("/")
                optimizers[int(where)].state[parameters[name]][slot] = file.get_tensor(key)
        return int(file.metadata()["step"])
