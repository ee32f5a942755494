"""Language models on a device: text generation from a GGUF or ONNX file.

>>> import weft.extras.language.run.lm
>>> model = weft.extras.language.run.lm.load("model.gguf", "small")
>>> for piece in model.generate("the quick brown", tokens=8):
...     print(piece, end="")

Several texts can run at once, each with its own iterator: each step of the device computes tokens of all of them. Their
results do not depend on each other.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from weft.arguments import integer
from weft.compiler.errors import CompileError
from weft.compiler.machine.emit import ceil_div
from weft.errors import InputError
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.integers import to_integers
from weft.extras.language.compiler.layout import Places, form_of
from weft.extras.language.compiler.model import LanguageModel
from weft.extras.language.compiler.reference import Perplexity, Reference, perplexity
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.compiler.weights import has_blocks
from weft.extras.language.gguf import reader as gguf
from weft.extras.language.gguf.file import is_gguf
from weft.extras.language.onnx import reader as onnx
from weft.extras.language.run.batch import Batch, End, Request
from weft.extras.language.run.decoder_run import DecoderMemory
from weft.extras.language.run.generation import Completion, Generation, Sampler, TextStream
from weft.extras.language.run.lm_machine import (
    Machine,
    StepCost,
    choose_page_size,
    choose_prompt_rows,
    language_configuration,
    min_prompt_tokens,
)
from weft.extras.language.run.lm_ranges import model_ranges
from weft.hdl.extras import provider
from weft.hdl.isa.config import Config
from weft.run.options import Opening, RunKeywords, RunOptions

if TYPE_CHECKING:
    from weft.extras.language.certificate.certificate import CertifiedProgram
    from weft.sim.device import Device

SUFFIX = ".onnx"
DEFAULT_TOKENS = 128
"""Limit for generated tokens if the caller sets none."""
ROWS = (1, 64)
"""Smallest and largest number of tokens side by side."""
_MAX_EXCESS_COUNTED = 4096
"""Tokens beyond the context that are counted for the message about a prompt that is too long."""
Source = str | os.PathLike[str] | bytes


def read(source: Source) -> LanguageModel:
    """Read a language model: a GGUF file or its bytes, or an ONNX file with ``tokenizer.json`` beside it.

    Raises
    ------
    weft.CompileError
        If the file has neither format, is damaged, or holds an unsupported model.
    """
    if isinstance(source, bytes):
        if source and not is_gguf(source):
            raise CompileError(
                f"these {len(source):,} bytes are no GGUF file; an ONNX model is read from its path, as its "
                "vocabulary is in files beside it"
            )
        return gguf.read(source)
    return onnx.read(source) if _is_onnx(Path(source)) else gguf.read(source)


def digest(source: Source, model: LanguageModel) -> str:
    """Return the SHA-256 of a model: of its file, or of the contents if several files hold it."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if _is_onnx(Path(source)):
        sha256 = hashlib.sha256()
        _update_hash(sha256, model)
        return sha256.hexdigest()
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_onnx(path: Path) -> bool:
    """Return whether the suffix is that of ONNX and the contents are not GGUF."""
    if path.suffix.lower() != SUFFIX:
        return False
    try:
        with path.open("rb") as file:
            return not is_gguf(file.read(8))
    except OSError:
        return True  # the reader reports the error


def _update_hash(sha256: Any, value: object) -> None:
    """Add a value, including all its fields or items, to a hash."""
    if isinstance(value, np.ndarray):
        sha256.update(f"{value.dtype} {value.shape}".encode())
        sha256.update(np.ascontiguousarray(value).data)
    elif isinstance(value, frozenset):
        _update_hash(sha256, tuple(sorted(value)))
    elif isinstance(value, tuple):
        sha256.update(f"({len(value)}".encode())
        for item in value:
            _update_hash(sha256, item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            sha256.update(field.name.encode())
            _update_hash(sha256, getattr(value, field.name))
    else:
        sha256.update(f"{value!r};".encode())


__all__ = ["Completion", "End", "Generation", "Model", "load"]


class Model:
    """Language model on a device; `load` creates it.

    Attributes
    ----------
    tokenizer : Tokenizer
    reference : Reference
        The model in float32.
    decoder : Decoder
        The device program; ``decoder.config`` is the configuration.
    added : tuple of str
        Fields that were added to the preset, as ``name=value``.
    memory_bytes : int
        Device memory that the model needs.
    step_costs : list of StepCost
        Costs of each step so far.
    """

    def __init__(
        self,
        reference: Reference,
        memory: DecoderMemory,
        machine: Machine,
        added: tuple[str, ...],
        min_prompt_tokens: Callable[[], int],
    ) -> None:
        self.reference, self.decoder, self.added = reference, memory.decoder, added
        self.memory_bytes = memory.memory_bytes
        self._memory = memory
        self.tokenizer = Tokenizer(reference.model.vocabulary)
        self._machine = machine
        places, prompts = self.decoder.places, self.decoder.prompts
        self._batch = Batch(
            machine, rows=places.rows, page=places.page, pages=memory.pages, context=places.sizes.context,
            prompt_rows=prompts.places.rows if prompts else 0, min_prompt_tokens=min_prompt_tokens,
        )  # fmt: skip

    @property
    def context(self) -> int:
        """Maximum number of tokens of a text."""
        return self.decoder.places.sizes.context

    @property
    def step_costs(self) -> list[StepCost]:
        return self._machine.step_costs

    @property
    def mismatches(self) -> int:
        """Logit bytes in which the device differs from the golden interpreter."""
        return self._machine.mismatches

    @property
    def max_characters(self) -> int:
        """Upper bound for the characters of a text that fits the context."""
        return self.context * self.tokenizer.max_token_characters

    def encode(
        self, prompt: str | Sequence[int], *, special: bool = False, begin: bool | None = None
    ) -> list[int]:
        """Return the tokens of a prompt, which is a text or a sequence of tokens.

        A text that is too long is refused before all of it is encoded.

        Parameters
        ----------
        prompt : str or sequence of int
        special, begin : bool
            For a text; see `weft.extras.language.compiler.tokenizer.Tokenizer.tokens`.

        Raises
        ------
        InputError
            If there are no tokens, more than the context holds, or tokens outside the vocabulary.
        weft.extras.language.compiler.encoders.TokenError
            If the vocabulary cannot represent the text.
        """
        vocabulary = self.tokenizer.vocabulary
        if isinstance(prompt, str):
            tokens = self._encode_text(prompt, special, begin)
            if not tokens and vocabulary.begin is not None:
                tokens = [vocabulary.begin]
        else:
            self._check_length(len(prompt))
            tokens = [integer("prompt", token, 0, len(vocabulary.tokens) - 1) for token in prompt]
        if not tokens:
            raise InputError(
                "the prompt is empty, and the model's vocabulary has no token for the begin of a text: give a prompt"
            )
        return tokens

    def _encode_text(self, text: str, special: bool, begin: bool | None) -> list[int]:
        if len(text) > self.max_characters:
            raise InputError(
                f"the prompt has {len(text):,} characters; the context has room for {self.context:,} tokens of at most "
                f"{self.tokenizer.max_token_characters:,} characters each"
            )
        token_iterator = self.tokenizer.tokens(text, special=special, begin=begin, end=False)
        # Count a little beyond the context for the message, but not all of a huge text.
        tokens = list(itertools.islice(token_iterator, self.context + _MAX_EXCESS_COUNTED))
        self._check_length(len(tokens), more=next(token_iterator, None) is not None)
        return tokens

    def _check_length(self, tokens: int, *, more: bool = False) -> None:
        if tokens > self.context:
            raise InputError(
                f"the prompt has {'more than ' if more else ''}{tokens:,} tokens; the context has room for "
                f"{self.context:,}"
            )

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        tokens: int = DEFAULT_TOKENS,
        temperature: float = 0.0,
        top_k: int | None = None,
        seed: int = 0,
        stop: str | Collection[str] = (),
    ) -> Generation:
        """Generate text after a prompt.

        Parameters
        ----------
        prompt : str or sequence of int
            Text, or its tokens.
        tokens : int
            Maximum number of generated tokens.
        temperature, top_k, seed
            See `weft.extras.language.run.generation.Sampler`. Temperature 0 chooses the token with the largest logit.
        stop : str or collection of str
            Stop sequences, which are not part of the text. The name of a control token also matches that token.

        Returns
        -------
        Generation
            Iterator of pieces. Each request for a piece advances all texts of this model.

        Raises
        ------
        InputError
            If an argument has a wrong type or is out of its limits.
        """
        tokens_of_prompt, stops = self.encode(prompt), _check_stops(stop)
        request = Request(
            tokens_of_prompt, integer("tokens", tokens, 1), Sampler(temperature, top_k, seed),
            self.tokenizer.vocabulary.ends,
        )  # fmt: skip
        self._batch.add(request)
        return Generation(self._batch, self.step, request, TextStream(self.tokenizer, stops))

    def step(self) -> bool:
        """Advance the running texts by one step; return False if there are none."""
        if self._batch.busy:
            self._batch.step()
        return self._batch.busy

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits after each token of a text: float64 (tokens, vocabulary).

        Raises
        ------
        InputError
            If there are no tokens, more than the context or the pages hold, or tokens outside the vocabulary.
        """
        request = Request(self.encode(tokens), 0, _choose_nothing, keep_logits=True)
        self._batch.add(request)
        while request.reason is None:
            self._batch.step()
        if request.reason is End.CACHE:
            raise InputError(
                f"the text has {request.prompt_length:,} tokens, and pages of keys and values have room for "
                f"{self._batch.pool.count * self.decoder.places.page:,}"
            )
        return np.stack(request.logits)

    def perplexity(
        self, text: str, *, window: int | None = None, stride: int | None = None, exact: bool = False
    ) -> Perplexity:
        """Return the perplexity of a text; see `weft.extras.language.compiler.reference.perplexity`.

        Parameters
        ----------
        text : str
        window, stride : int
            By default the context, and half a window.
        exact : bool
            Use the float32 reference instead of the device.
        """
        window = self.context if window is None else integer("window", window, 2, self.context)
        function = self.reference.logits if exact else self.logits
        return perplexity(function, self.tokenizer.encode(text), window=window, stride=stride)

    def certify(self, progress: Callable[[str], None] = lambda text: None) -> list[CertifiedProgram]:
        """Prove that the decoder's programs compute the model's integers.

        The proof covers every position of a token in its text, any token, and any keys and values before it
        (`weft.extras.language.certificate.steps`).

        Parameters
        ----------
        progress : callable
            Called with a description of each step of the proof.

        Raises
        ------
        weft.extras.proof.certificate.CertificateError
            If a program is not proven; the message gives the difference, or the unsupported part.
        weft.hdl.errors.ExtraError
            If the extra for proofs is not installed.
        """
        # Certificates of decoders use parts of this extra.
        provider("certify a program")
        from weft.extras.language.certificate.certificate import certify

        return certify(self._memory, progress)

    def compare_memory(self) -> int:
        """Return the number of memory bytes that differ from the golden interpreter's, or 0 without a comparison."""
        return self._machine.compare_memory()

    def close(self) -> None:
        """Free the device; the model cannot be used afterwards."""
        self._machine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def load(
    path: str | os.PathLike[str] | bytes,
    config: str | os.PathLike[str] | Config = "default",
    *,
    rows: int = 1,
    context: int | None = None,
    pages: int | None = None,
    calibration: str | None = None,
    on: str | Device | Opening | RunOptions = "golden",
    compare: bool = False,
    **options: Unpack[RunKeywords],
) -> Model:
    """Load a language model from a GGUF or ONNX file onto a device.

    Parameters
    ----------
    path : str, path or bytes
        The file, or the bytes of a GGUF file. An ONNX file needs ``tokenizer.json`` and the model's configuration in
        its folder.
    config : str, path or Config
        A preset, to which the features for language models are added, or a configuration that has them.
    rows : int
        Tokens per step: of several texts, or of one prompt.
    context : int, optional
        Maximum number of tokens of a text; by default, and at most, the model's own.
    pages : int, optional
        Pages of keys and values; by default as many as `rows` texts of a full context need.
    calibration : str, optional
        Text for choosing quantisation steps; by default texts that the model generates
        (`weft.extras.language.run.lm_ranges`).
    on : "golden", "rtl", "timing", Device, Opening or RunOptions
        Where to run. A function opens a device for the final configuration, for example
        ``functools.partial(weft.run.virtual.board_at, None)`` for the connected board. On "timing" the golden
        interpreter computes, and the cycle model counts cycles.
    compare : bool
        Compare the device with the golden interpreter.
    options
        Fields of `weft.RunOptions`.

    Raises
    ------
    weft.CompileError
        If the file is neither format, its architecture has no device program, or the model does not fit the
        configuration.
    weft.ConfigError
        If the configuration does not exist or lacks a feature.
    InputError
        If an argument has a wrong type or is out of its limits, or if memory is too small.
    """
    record = RunOptions.of(on, **options)
    # Refuse a configuration before a large file is read.
    language_configuration(config)
    rows = integer("rows", rows, *ROWS)
    model = read(path)
    # Refuse a model without a device program before anything that takes long.
    form_of(model)
    has_4_bit_blocks = has_blocks(model)
    extended = language_configuration(config, blocks=has_4_bit_blocks)
    # Existing hardware may lack this feature; its weights are int8.
    blocks = has_4_bit_blocks and extended.config.blocks
    context = model.sizes.context if context is None else integer("context", context, 1, model.sizes.context)
    limited = dataclasses.replace(model, sizes=dataclasses.replace(model.sizes, context=context))
    form = form_of(model, gains=blocks)
    page = choose_page_size(limited.sizes, extended.config, rows, form)
    pages = rows * ceil_div(context, page) if pages is None else integer("pages", pages, 1)
    places = Places(limited.sizes, extended.config, rows, page, form)
    # Ranges do not depend on the chosen context, so that all contexts share a cache entry.
    reference = Reference(model)
    value_ranges = model_ranges(reference, digest(path, model), _calibration_tokens(model, calibration))
    decoder = Decoder(
        to_integers(limited, value_ranges, blocks=blocks), extended.config, rows=rows, page=page,
        prompt_rows=choose_prompt_rows(places),
    )  # fmt: skip
    memory = DecoderMemory(decoder, pages)
    machine = Machine(memory, record, compare=compare)
    min_tokens = functools.cache(functools.partial(min_prompt_tokens, memory, record))
    return Model(reference, memory, machine, extended.added, min_tokens)


def _calibration_tokens(model: LanguageModel, text: str | None) -> list[int] | None:
    if text is None:
        return None
    if tokens := Tokenizer(model.vocabulary).encode(text):
        return tokens
    raise InputError("the calibration text is empty")


def _check_stops(stop: str | Collection[str]) -> list[str]:
    """Return the stop sequences as a list, after a check."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise InputError(f"'stop' must be texts that are not empty, not {stop!r}")
    return stops


def check_options(
    *,
    tokens: int = DEFAULT_TOKENS,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: str | Collection[str] = (),
) -> None:
    """Raise `InputError` if `Model.generate` would refuse these options."""
    integer("tokens", tokens, 1)
    Sampler(temperature, top_k, seed)
    _check_stops(stop)


def _choose_nothing(logits: np.ndarray) -> int:
    raise AssertionError("no token follows")
