"""A small Llama in PyTorch, and its conversion to weft's language model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from weft.extras.language.compiler import model as language
from weft.extras.language.compiler.model import Vocabulary

SIZES = language.Sizes(
    context=256, width=192, blocks=4, heads=6, key_value_heads=2, key_length=32, value_length=32, feed_forward=512,
    vocabulary=1024,
)  # fmt: skip
EPSILON = 1e-5
ROTARY = language.Rotary(dimensions=SIZES.key_length, base=10_000.0)


class Block(nn.Module):
    """Attention and a gated feed-forward network; each adds its result to its input."""

    def __init__(self) -> None:
        super().__init__()
        width, inner = SIZES.width, SIZES.feed_forward
        queries, keys = SIZES.heads * SIZES.key_length, SIZES.key_value_heads * SIZES.key_length
        self.attention_norm, self.feed_forward_norm = (nn.RMSNorm(width, EPSILON) for _ in range(2))
        self.query, self.key, self.value = _linear(width, queries), _linear(width, keys), _linear(width, keys)
        self.gate, self.up = _linear(width, inner), _linear(width, inner)
        self.attention_output, self.down = (
            _linear(queries, width, last=True),
            _linear(inner, width, last=True),
        )

    def forward(self, x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
        """Return `x` (batch, tokens, width) after the block; `rotations` is complex (tokens, key length / 2)."""
        normal = self.attention_norm(x)
        query, key = (_rotate_pairs(_heads(layer(normal)), rotations) for layer in (self.query, self.key))
        mixed = functional.scaled_dot_product_attention(
            query, *(_repeat_heads(item) for item in (key, _heads(self.value(normal)))), is_causal=True
        )
        x = x + self.attention_output(mixed.transpose(1, 2).flatten(2))
        normal = self.feed_forward_norm(x)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal))


def _linear(inputs: int, outputs: int, *, last: bool = False) -> nn.Linear:
    """Return a linear layer without bias; the `last` one of a block starts with small weights."""
    layer = nn.Linear(inputs, outputs, bias=False)
    # Each block adds two results: their sum over all blocks should not grow with the number of blocks.
    nn.init.normal_(layer.weight, std=(inputs * (2 * SIZES.blocks if last else 1)) ** -0.5)
    return layer


def _heads(x: torch.Tensor) -> torch.Tensor:
    """Return `x` as (batch, heads, tokens, length)."""
    return x.unflatten(2, (-1, SIZES.key_length)).transpose(1, 2)


def _repeat_heads(x: torch.Tensor) -> torch.Tensor:
    """Return each head of keys or values once for every head of queries that it serves."""
    return x.repeat_interleave(SIZES.heads // SIZES.key_value_heads, 1)


def _rotate_pairs(x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Return `x` with pairs of neighbours rotated by their position's angles, as in GGUF's llama."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rotations).flatten(-2)


class Network(nn.Module):
    """Embeddings, blocks, a norm, and logits from the same embeddings."""

    rotations: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SIZES.vocabulary, SIZES.width)
        nn.init.normal_(self.embedding.weight, std=SIZES.width**-0.5)
        self.blocks = nn.ModuleList(Block() for _ in range(SIZES.blocks))
        self.norm = nn.RMSNorm(SIZES.width, EPSILON)
        angles = torch.tensor(ROTARY.angles(np.arange(SIZES.context)), dtype=torch.float32)
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, tokens, vocabulary) of tokens (batch, tokens)."""
        x, rotations = self.embedding(tokens), self.rotations[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, rotations)
        return functional.linear(self.norm(x), self.embedding.weight)

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return logits (tokens, vocabulary) of the tokens of one text."""
        return self(torch.tensor([tokens]))[0].numpy()

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy in nats of all tokens but the first of each row (batch, tokens)."""
        return functional.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def language_model(network: Network, name: str, vocabulary: Vocabulary) -> language.LanguageModel:
    """Return a network as a language model in float32."""
    embedding = _array(network.embedding.weight)
    return language.LanguageModel(
        name=name, architecture="llama", sizes=SIZES, epsilon=EPSILON, token_embedding=embedding, rotary=ROTARY,
        positions=None, blocks=tuple(_block(block) for block in network.blocks),
        output_norm=language.Norm(_array(network.norm.weight)), output=language.Linear(embedding),
        vocabulary=vocabulary,
    )  # fmt: skip


def _block(block: nn.Module) -> language.Block:
    linears = ("query", "key", "value", "attention_output", "gate", "up", "down")
    norms = ("attention_norm", "feed_forward_norm")
    parts: dict[str, Any] = {name: language.Linear(_array(getattr(block, name).weight)) for name in linears}
    parts |= {name: language.Norm(_array(getattr(block, name).weight)) for name in norms}
    return language.Block(**parts)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().copy()


def parameters(network: Network) -> int:
    """Return the number of trained parameters."""
    return sum(math.prod(parameter.shape) for parameter in network.parameters())
