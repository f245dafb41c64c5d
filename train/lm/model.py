"""The model, a Hugging Face causal language model built from a config file, and its optimizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lm.corpus import VOCABULARY
from lm.errors import TrainingError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def build_model(config: str, *, sequence_length: int, seed: int, device: torch.device) -> PreTrainedModel:
    """A freshly initialised model in fp32 on `device`; the same seed gives the same weights on every rank.

    Every rank holds the whole model for a moment, before the engine shards it: it must fit on the device.

    Args:
        config: the name of a file in train/configs, or the path of a Hugging Face config.json.
        sequence_length: tokens in a sample; the model must have as many positions.

    Raises:
        TrainingError: the file is missing or no config, or does not fit the tokenizer or the samples.
    """
    path = Path(config) if config.endswith(".json") else CONFIGS / f"{config}.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = AutoConfig.for_model(**settings)
    except (OSError, TypeError, ValueError) as error:
        raise TrainingError(f"cannot use the model config {path}: {error}") from error
    if settings.vocab_size < VOCABULARY:
        raise TrainingError(
            f"{path}: vocab_size is {settings.vocab_size}; the ByT5 tokenizer needs {VOCABULARY}"
        )
    if settings.max_position_embeddings < sequence_length:
        raise TrainingError(
            f"{path}: max_position_embeddings is {settings.max_position_embeddings}, "
            f"less than --sequence-length {sequence_length}"
        )
    torch.manual_seed(seed)
    with device:
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    model.config.use_cache = False
    return model


def build_optimizer(model: torch.nn.Module, *, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices only, not norms and biases. The loop sets the learning rate of each step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
