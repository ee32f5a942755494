"""A vocabulary of SentencePiece's, trained on a text."""

from __future__ import annotations

import io
from collections.abc import Iterable

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from weft.extras.language.compiler.model import Kind, Vocabulary


def train(texts: Iterable[str], size: int) -> tuple[Vocabulary, sentencepiece.SentencePieceProcessor]:
    """The vocabulary, and SentencePiece's own tokenizer of it.

    Digits are always single tokens, and what is no piece is written in bytes. A text ends where the next one begins, so
    that one token is for both.

    Parameters
    ----------
    texts : iterable of str
    size : int
        Tokens, 256 of them for bytes.
    """
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=made, model_type="bpe", vocab_size=size, byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        character_coverage=0.9999, max_sentence_length=1 << 16, num_threads=1, minloglevel=2,
    )  # fmt: skip
    content = made.getvalue()
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    vocabulary = Vocabulary(
        model="llama",
        pre="",
        tokens=tuple(piece.piece for piece in model.pieces),
        kinds=tuple(Kind(piece.type) for piece in model.pieces),
        scores=tuple(piece.score for piece in model.pieces),
        begin=model.trainer_spec.bos_id,
        end=model.trainer_spec.bos_id,
        unknown=model.trainer_spec.unk_id,
        ends=frozenset({model.trainer_spec.bos_id}),
        add_begin=True,
        add_space=True,
    )
    return vocabulary, sentencepiece.SentencePieceProcessor(model_proto=content)
