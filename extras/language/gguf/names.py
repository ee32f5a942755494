"""Names of metadata keys and tensors in GGUF files."""

from __future__ import annotations

TOKEN_EMBEDDING = "token_embd.weight"
POSITIONS = "position_embd.weight"
ROTARY_FACTORS = "rope_freqs.weight"
OUTPUT_NORM = "output_norm"
OUTPUT = "output"

FUSED = "attn_qkv"
"""Queries, keys and values as one matrix, one after the other, in ``gpt2`` files."""
LINEARS = {
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "attention_output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
"""Fields of `weft.extras.language.compiler.model.Block`, and their tensors' names."""
NORMS = {"attention_norm": "attn_norm", "feed_forward_norm": "ffn_norm"}

SIZES = {
    "context": "context_length",
    "width": "embedding_length",
    "blocks": "block_count",
    "heads": "attention.head_count",
    "key_value_heads": "attention.head_count_kv",
    "key_length": "attention.key_length",
    "value_length": "attention.value_length",
    "feed_forward": "feed_forward_length",
    "vocabulary": "vocab_size",
}
"""Fields of `weft.extras.language.compiler.model.Sizes`, and their keys after the architecture's name."""
EPSILON = {"llama": "attention.layer_norm_rms_epsilon", "gpt2": "attention.layer_norm_epsilon"}
"""Key of the norms' epsilon, by architecture."""
ROTARY_DIMENSIONS = "rope.dimension_count"
ROTARY_BASE = "rope.freq_base"
SCALING_TYPE = "rope.scaling.type"
SCALING_FACTOR = "rope.scaling.factor"
OLD_SCALING_FACTOR = "rope.scale_linear"
"""Key of older files, which have no scaling type."""
CHAT_TEMPLATE = "tokenizer.chat_template"


def block(index: int, name: str) -> str:
    """Return the name of a tensor of block `index`, without ``.weight`` or ``.bias``."""
    return f"blk.{index}.{name}"
