"""A causal language model from a local transformers directory: prompts in, logits out.

Wraps transformers; no other module of the engine touches it. Owns tokenisation, the chat template and
the forward pass. Does not own scheduling or sampling.

Shape legend: T = tokens of this step, V = vocabulary, H = key-value heads, D = head dimension.
"""

# ruff: noqa: N806 -- tensors carry their shape as a suffix (STYLE.md, torch)

import copy
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from routing_engine.engine.demo_model import go_offline
from routing_engine.engine.errors import BadEngineRequest, ModelUnavailable


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation as the chat template sees it."""

    role: str
    content: str


class Cache(Protocol):
    """The keys and values of the tokens that one sequence has read."""

    layers: Any

    def get_seq_length(self) -> int:
        """Return the number of tokens read."""
        ...


class LanguageModel:
    """A loaded model. One thread may run it; any thread may tokenise.

    Raises:
        ModelUnavailable: the directory holds no model that transformers can load.
    """

    def __init__(self, model_dir: Path) -> None:
        go_offline()
        import transformers

        library: Any = transformers  # its functions carry no types
        library.utils.logging.disable_progress_bar()
        try:
            self._tokenizer: Any = library.AutoTokenizer.from_pretrained(
                str(model_dir), local_files_only=True
            )
            self._model: Any = library.AutoModelForCausalLM.from_pretrained(
                str(model_dir), local_files_only=True, dtype="auto"
            ).eval()
        except (OSError, ValueError, RuntimeError, ImportError, KeyError) as exc:
            raise ModelUnavailable(f"{model_dir}: can't be loaded as a model: {exc}") from exc
        if not self._tokenizer.chat_template:
            raise ModelUnavailable(f"{model_dir}: the tokenizer has no chat template")
        # A tokenizer changes its own state while it encodes, so encoding takes turns; decoding has
        # a copy of its own, so that a long prompt never holds up the answers of others.
        self._decoder: Any = copy.deepcopy(self._tokenizer)
        self._encode_lock = threading.Lock()
        self.eos_ids = self._find_eos_ids()
        self.context_tokens_max = int(self._model.config.max_position_embeddings)
        self._special_texts = tuple(
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.special
        )

    @property
    def parameter_count(self) -> int:
        """The number of weights."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def encode_chat(self, turns: Sequence[Turn], *, opens_answer: bool = True) -> list[int]:
        """Return the token ids of a conversation, ready for the answer when `opens_answer`.

        Text that looks like a control token (``<|im_end|>``) stays text: nobody opens a turn of
        another role by writing its markup into a message.

        Raises:
            BadEngineRequest: the model's chat template refuses the order of roles.
        """
        with self._encode_lock:
            if any(special in turn.content for turn in turns for special in self._special_texts):
                return self._encode_with_markup_as_text(turns, opens_answer)
            return list(self._tokenizer.encode(self._render(turns, opens_answer), **_NO_SPECIALS))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without control tokens; half characters become U+FFFD."""
        text: str = self._decoder.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def new_cache(self) -> Cache:
        """Return an empty key-value cache."""
        from transformers import DynamicCache

        cache: Cache = DynamicCache(config=self._model.config)
        return cache

    def copy_cache(self, cache: Cache) -> Cache:
        """Return a copy of `cache` that grows on its own."""
        from transformers import DynamicCache

        copied: Any = DynamicCache(config=self._model.config)
        for index, layer in enumerate(cache.layers):
            # Growing concatenates into new tensors, so that the copy can share the old ones.
            copied.update(layer.keys, layer.values, index)
        result: Cache = copied
        return result

    def forward(self, token_ids: Sequence[int], cache: Cache) -> Tensor:
        """Read `token_ids` after what `cache` holds; return the logits of the next token, [V]."""
        with torch.inference_mode():
            ids_1T = torch.tensor([list(token_ids)], dtype=torch.long)
            output = self._model(input_ids=ids_1T, cache=cache, use_cache=True, logits_to_keep=1)
            logits_V: Tensor = output.logits[0, -1].float()
            return logits_V

    def _find_eos_ids(self) -> frozenset[int]:
        declared = self._model.generation_config.eos_token_id
        ids = set(declared) if isinstance(declared, list) else {declared}
        ids.add(self._tokenizer.eos_token_id)
        return frozenset(int(token_id) for token_id in ids if token_id is not None)

    def _render(self, turns: Sequence[Turn], opens_answer: bool) -> str:
        import jinja2

        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=opens_answer
            )
        except (jinja2.TemplateError, ValueError) as exc:
            raise BadEngineRequest(
                f"the model's chat template refuses these messages: {exc}", param="messages"
            ) from exc
        return text

    def _encode_with_markup_as_text(self, turns: Sequence[Turn], opens_answer: bool) -> list[int]:
        # The template is rendered with a stand-in for each text, which nobody can guess; what lies
        # between the stand-ins is the template's own markup.
        marks = [f"eg-{secrets.token_hex(8)}-{index}-" for index in range(len(turns))]
        stand_ins = [Turn(turn.role, mark) for turn, mark in zip(turns, marks, strict=True)]
        rest = self._render(stand_ins, opens_answer)
        token_ids: list[int] = []
        for turn, mark in zip(turns, marks, strict=True):
            before, found, rest = rest.partition(mark)
            token_ids += self._tokenizer.encode(before, **_NO_SPECIALS)
            if found:
                token_ids += self._tokenizer.encode(
                    turn.content, split_special_tokens=True, **_NO_SPECIALS
                )
        return token_ids + list(self._tokenizer.encode(rest, **_NO_SPECIALS))


_NO_SPECIALS = {"add_special_tokens": False}
"""The chat template writes the control tokens itself; adding them again would double the first."""
