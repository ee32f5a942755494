"""Language models on the device: text, token by token, from a GGUF or ONNX file.

>>> import weft.extras.language.run.lm
>>> model = weft.extras.language.run.lm.load("model.gguf", "small")
>>> for piece in model.generate("the quick brown", tokens=8):
...     print(piece, end="")

Several texts may be under way at once: each has its own iterator, and each step of the device computes a token of all
of them. What they come to does not depend on each other.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.arguments import integer
from weft.compiler.machine.emit import ceil_div
from weft.errors import InputError
from weft.extras.language.compiler.decoder import Decoder
from weft.extras.language.compiler.form import form_of
from weft.extras.language.compiler.integers import integers
from weft.extras.language.compiler.model import LanguageModel
from weft.extras.language.compiler.perplexity import Perplexity, perplexity
from weft.extras.language.compiler.places import Places
from weft.extras.language.compiler.reference import Reference
from weft.extras.language.compiler.tokenizer import Tokenizer
from weft.extras.language.compiler.weights import has_blocks
from weft.extras.language.run.batch import Batch, End, Request
from weft.extras.language.run.decoder_run import DecoderMemory
from weft.extras.language.run.generation import Completion, Generation
from weft.extras.language.run.lm_config import language_configuration, page_of, prompt_rows_of
from weft.extras.language.run.lm_file import digest, read
from weft.extras.language.run.lm_machine import Counted, Machine, prompt_least
from weft.extras.language.run.lm_ranges import model_ranges
from weft.extras.language.run.lm_text import Text
from weft.extras.language.run.sampling import Sampler
from weft.hdl.isa.config import Config
from weft.run.devices import Opening, Simulation

if TYPE_CHECKING:
    from weft.extras.language.certificate.certificate import CertifiedProgram
    from weft.sim.device import Device

__all__ = ["Completion", "End", "Generation", "Model", "load"]

TOKENS = 128
"""Tokens that follow a prompt if nobody says how many."""
ROWS = (1, 64)
"""Limits of tokens side by side."""
_BEYOND = 4096
"""Tokens of a prompt beyond the context that are counted, to say how many there are."""


class Model:
    """A language model on a device; `load` makes them.

    Attributes
    ----------
    tokenizer : Tokenizer
    reference : Reference
        What the model computes in float32.
    decoder : Decoder
        Its program. ``decoder.config`` is the configuration.
    added : tuple of str
        Fields that were added to the preset, as ``name=value``.
    memory_bytes : int
        Of the device, for all that there is.
    counted : list of Counted
        What each step so far took.
    """

    def __init__(
        self,
        reference: Reference,
        memory: DecoderMemory,
        machine: Machine,
        added: tuple[str, ...],
        prompt_least: Callable[[], int],
    ) -> None:
        self.reference, self.decoder, self.added = reference, memory.decoder, added
        self.memory_bytes = memory.memory_bytes
        self._memory = memory
        self.tokenizer = Tokenizer(reference.model.vocabulary)
        self._machine = machine
        places, prompts = self.decoder.places, self.decoder.prompts
        self._batch = Batch(
            machine, rows=places.rows, page=places.page, pages=memory.pages, context=places.sizes.context,
            prompt_rows=prompts.places.rows if prompts else 0, prompt_least=prompt_least,
        )  # fmt: skip

    @property
    def context(self) -> int:
        """Tokens of a text at most."""
        return self.decoder.places.sizes.context

    @property
    def counted(self) -> list[Counted]:
        return self._machine.counted

    @property
    def mismatches(self) -> int:
        """Bytes of logits in which a device differed from the golden interpreter."""
        return self._machine.mismatches

    @property
    def longest(self) -> int:
        """Characters of a text that the context has room for at most, whatever they are."""
        return self.context * self.tokenizer.longest

    def encode(
        self, prompt: str | Sequence[int], *, special: bool = False, begin: bool | None = None
    ) -> list[int]:
        """The tokens of a prompt: those of a text, or tokens as they are.

        A text that is too long is refused before it is encoded as a whole.

        Parameters
        ----------
        prompt : str or sequence of int
        special, begin : bool
            Of a text, as `weft.extras.language.compiler.tokenizer.Tokenizer.tokens` has them.

        Raises
        ------
        InputError
            If there are none, more than the context has room for, or such that the vocabulary has not.
        weft.extras.language.compiler.encoders.TokenError
            If the vocabulary cannot write the text.
        """
        known = self.tokenizer.vocabulary
        if isinstance(prompt, str):
            tokens = self._encode_text(prompt, special, begin)
            if not tokens and known.begin is not None:
                tokens = [known.begin]
        else:
            self._check_length(len(prompt))
            tokens = [integer("prompt", token, 0, len(known.tokens) - 1) for token in prompt]
        if not tokens:
            raise InputError(
                "the prompt is empty, and the model's vocabulary has no token for the begin of a text: give a prompt"
            )
        return tokens

    def _encode_text(self, text: str, special: bool, begin: bool | None) -> list[int]:
        if len(text) > self.longest:
            raise InputError(
                f"the prompt has {len(text):,} characters; the context has room for {self.context:,} tokens of at most "
                f"{self.tokenizer.longest:,} characters each"
            )
        following = self.tokenizer.tokens(text, special=special, begin=begin, end=False)
        tokens = list(itertools.islice(following, self.context + _BEYOND))
        self._check_length(len(tokens), more=next(following, None) is not None)
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
        tokens: int = TOKENS,
        temperature: float = 0.0,
        top_k: int | None = None,
        seed: int = 0,
        stop: str | Collection[str] = (),
    ) -> Generation:
        """Go on with a text.

        Parameters
        ----------
        prompt : str or sequence of int
            A text, or its tokens.
        tokens : int
            Tokens that follow at most.
        temperature, top_k, seed
            As `weft.extras.language.run.sampling.Sampler` has them. At temperature 0 the token with the largest logit
            follows.
        stop : str or collection of str
            Texts in front of which it ends; the name of a control token stands for this token, too.

        Returns
        -------
        Generation
            Pieces of the text. It is computed as they are asked for, together with all other texts of this model.

        Raises
        ------
        InputError
            If an argument is of a wrong type or out of its limits.
        """
        given, stops = self.encode(prompt), _stops(stop)
        request = Request(
            given, integer("tokens", tokens, 1), Sampler(temperature, top_k, seed),
            self.tokenizer.vocabulary.ends,
        )  # fmt: skip
        self._batch.add(request)
        return Generation(self, request, Text(self.tokenizer, stops))

    def step(self) -> bool:
        """Compute some tokens of the texts that go on; False if there are none."""
        if self._batch.busy:
            self._batch.step()
        return self._batch.busy

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits behind each token of a text: float64 (tokens, vocabulary).

        Raises
        ------
        InputError
            If there are none, more than the context has room for, or such that the vocabulary has not; or if there are
            not enough pages for them.
        """
        request = Request(self.encode(tokens), 0, _nothing, every=True)
        self._batch.add(request)
        while request.reason is None:
            self._batch.step()
        if request.reason is End.CACHE:
            raise InputError(
                f"the text has {request.given:,} tokens, and pages of keys and values have room for "
                f"{self._batch.pool.count * self.decoder.places.page:,}"
            )
        return np.stack(request.logits)

    def perplexity(
        self, text: str, *, window: int | None = None, stride: int | None = None, exact: bool = False
    ) -> Perplexity:
        """The perplexity of a text, as `weft.extras.language.compiler.perplexity.perplexity` has it.

        Parameters
        ----------
        text : str
        window, stride : int
            By default the context, and half a window.
        exact : bool
            That of the float32 reference in place of the device's.
        """
        window = self.context if window is None else integer("window", window, 2, self.context)
        function = self.reference.logits if exact else self.logits
        return perplexity(function, self.tokenizer.encode(text), window=window, stride=stride)

    def certify(self, told: Callable[[str], None] = lambda text: None) -> list[CertifiedProgram]:
        """Prove that the decoder's programs compute what the model's integers say, for every place of a token in its
        text, any token, and any keys and values before it (`weft.extras.language.certificate.steps`).

        Parameters
        ----------
        told : callable
            Told what is being done.

        Raises
        ------
        weft.extras.proof.certificate.CertificateError
            If a program is not proven; the message says where it differs, or what is not known.
        """
        from weft.extras.language.certificate.certificate import certify

        return certify(self._memory, told)

    def compare_memory(self) -> int:
        """How many bytes of memory differ from the golden interpreter's, if that computes beside the device."""
        return self._machine.compare_memory()

    def close(self) -> None:
        """Free the device. The model cannot be used afterwards."""
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
    on: str | Device | Opening = "golden",
    simulation: Simulation | None = None,
    compare: bool = False,
) -> Model:
    """Load a language model from a GGUF or ONNX file, for a device.

    Parameters
    ----------
    path : str, path or bytes
        The file, or the bytes of a GGUF file. Beside an ONNX file are ``tokenizer.json`` and the model's configuration.
    config : str, path or Config
        A preset, which gets the features that language models take; or a configuration that has them.
    rows : int
        Tokens that the device computes side by side: those of several texts, or of a prompt.
    context : int, optional
        Tokens of a text at most; by default, and at most, those that the model was made for.
    pages : int, optional
        Pages of keys and values; by default as many as `rows` texts of a whole context take.
    calibration : str, optional
        A text that steps of numbers are chosen by; by default the model makes some
        (`weft.extras.language.run.lm_ranges`).
    on : "golden", "rtl", "timing", Device or Opening
        Where it runs; a function opens a device for the configuration that the model gets, as
        ``functools.partial(weft.run.virtual.board_at, None)`` does with the board that is connected. On "timing" the
        golden interpreter computes, and cycles are counted beside it.
    simulation : Simulation, optional
        Of the device's memory.
    compare : bool
        Have the golden interpreter compute beside the device, and compare.

    Raises
    ------
    weft.CompileError
        If it is no such file, of an architecture that does not run on the device, or does not fit the configuration.
    weft.ConfigError
        If there is no such configuration, or it lacks something.
    InputError
        If an argument is of a wrong type or out of its limits, or if there is not enough memory.
    """
    language_configuration(config)  # refuses before a large file is read
    rows = integer("rows", rows, *ROWS)
    model = read(path)
    form_of(model)  # refuses what has no program
    narrow = has_blocks(model)
    chosen = language_configuration(config, blocks=narrow)
    blocks = narrow and chosen.config.blocks
    context = model.sizes.context if context is None else integer("context", context, 1, model.sizes.context)
    limited = dataclasses.replace(model, sizes=dataclasses.replace(model.sizes, context=context))
    form = form_of(model, gains=blocks)
    page = page_of(limited.sizes, chosen.config, rows, form)
    pages = rows * ceil_div(context, page) if pages is None else integer("pages", pages, 1)
    places = Places(limited.sizes, chosen.config, rows, page, form)
    reference = Reference(model)
    found = model_ranges(reference, digest(path, model), _tokens(model, calibration))
    decoder = Decoder(
        integers(limited, found, blocks=blocks), chosen.config, rows=rows, page=page,
        prompt_rows=prompt_rows_of(places),
    )  # fmt: skip
    memory = DecoderMemory(decoder, pages)
    simulation = simulation or Simulation()
    machine = Machine(memory, on, simulation, compare=compare)
    least = functools.cache(functools.partial(prompt_least, memory, simulation))
    return Model(reference, memory, machine, chosen.added, least)


def _tokens(model: LanguageModel, text: str | None) -> list[int] | None:
    """The tokens of a text that steps are chosen by."""
    if text is None:
        return None
    if tokens := Tokenizer(model.vocabulary).encode(text):
        return tokens
    raise InputError("the calibration text is empty")


def _stops(stop: str | Collection[str]) -> list[str]:
    """Texts in front of which one ends, checked."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise InputError(f"'stop' must be texts that are not empty, not {stop!r}")
    return stops


def check_options(
    *,
    tokens: int = TOKENS,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: str | Collection[str] = (),
) -> None:
    """Raise `InputError` for what `Model.generate` refuses of these."""
    integer("tokens", tokens, 1)
    Sampler(temperature, top_k, seed)
    _stops(stop)


def _nothing(logits: np.ndarray) -> int:
    raise AssertionError("no token follows")
