"""Tiny random models of every proven family, written as ordinary folders, and what an uncut model says of them.

Each config has all kinds of layers of its family. The weights are scaled so that greedy decoding wanders over many
tokens: a model that repeats one token proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 128
LAYERS = 6
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
    "qwen3": {},
    "gemma3_text": {
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
        "final_logit_softcapping": 0.5,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    },
    "mixtral": {"num_local_experts": 4, "sliding_window": 24},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": 16},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 2,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "num_key_value_heads": 4,
        "head_dim": 8,
    },
    "qwen3_next": {
        **EXPERTS,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    },
    "granitemoehybrid": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.7,
        "logits_scaling": 3.0,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "layer_types": ["mamba", "attention", "mamba", "mamba", "attention", "mamba"],
    },
}


def write_model(folder: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """A model of the family with random weights, as a folder of safetensors in float32."""
    config = AutoConfig.for_model(family, **{**COMMON, **FAMILIES[family], **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            # A large embedding that is tied to the head would make each token its own successor.
            parameter.data.normal_(0, 0.03 if name.endswith("embed_tokens.weight") else 0.2)
    model.save_pretrained(folder)
    return folder


def uncut(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The whole model as transformers loads it: what everything is compared with."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def prompt(length: int, seed: int) -> list[int]:
    """Random token ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    """`count` tokens after `ids`, by transformers' own generate; end tokens are not heeded."""
    with torch.inference_mode():
        # The mask is given, else generate takes every id that equals the padding's for padding.
        given = torch.tensor([ids])
        out = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    found: list[int] = out[0, len(ids) :].tolist()
    return found


def logits_by_chunks(model: Any, ids: list[int], sizes: Sequence[int]) -> torch.Tensor:
    """The uncut model's logits after each position, [n, vocabulary], computed with its own cache in these chunks. (Some
    families differ by more than 1e-4 between one pass and chunks, all by themselves.)"""
    cache, at, found = None, 0, []
    with torch.inference_mode():
        for size in sizes:
            out = model(torch.tensor([ids[at : at + size]]), cache=cache, use_cache=True)
            cache = out.cache
            found.append(out.logits[0].float())
            at += size
    return torch.cat(found)


def rounding_noise(folder: Path, ids: list[int], sizes: Sequence[int]) -> float:
    """How far the uncut model's logits move when each weight moves by half a unit in its last place: the largest
    difference of three tries. A family that divides by small norms moves by 1e-3 and more, on one kind of CPU as on
    another; two right implementations differ by as much.
    """
    want = logits_by_chunks(uncut(folder), ids, sizes)
    generator = torch.Generator().manual_seed(0)
    found = 0.0
    for _ in range(3):
        moved = uncut(folder)
        with torch.no_grad():
            for weight in moved.parameters():
                weight.mul_(1 + torch.randn(weight.shape, generator=generator) * 2**-24)
        found = max(found, (logits_by_chunks(moved, ids, sizes) - want).abs().max().item())
    return found
