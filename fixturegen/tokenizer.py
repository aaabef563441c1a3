"""The tokenizer of every checkpoint: byte-level BPE, trained here from ``data/corpus.txt``.

Training is deterministic: the trainer of the ``tokenizers`` library breaks ties between equally
frequent pairs by their ids, and the corpus goes in as one text, so that threads change nothing.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files as resource_files
from typing import TYPE_CHECKING, Any

from fixturegen.errors import RecipeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: ids 0, 1 and 2, as ``bos_token_id``, ``eos_token_id`` and ``pad_token_id`` of a recipe's model
SPECIAL_TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}

#: one id per byte and per special token
SMALLEST_VOCAB = 256 + len(SPECIAL_TOKENS)

#: ``max_position_embeddings`` of DeepSeek-V3; an engine takes the smaller of this and config.json's
MODEL_MAX_LENGTH = 163_840


@cache
def train(vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most ``vocab_size`` ids; fewer where the corpus gives no more merges.

    Every byte has an id, so any text survives encoding and decoding. ``encode`` puts one BOS in
    front unless called with ``add_special_tokens=False``. The result is cached: do not change it.

    Raises RecipeError when ``vocab_size`` leaves no room for the bytes and the special tokens.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise RecipeError(
            f"tokenizer_vocab_size is {vocab_size}; allowed: at least {SMALLEST_VOCAB} "
            f"(256 bytes and {len(SPECIAL_TOKENS)} special tokens)"
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_data("corpus.txt")], trainer)
    bos = SPECIAL_TOKENS["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
    return tokenizer


def files(vocab_size: int) -> dict[str, bytes]:
    """Name and content of the tokenizer files of a checkpoint, as ``AutoTokenizer`` reads them.

    One BOS comes first however a prompt is made: plain text gets it from the tokenizer, a chat from
    the template, since ``apply_chat_template(tokenize=True)`` and vLLM's ``LLM.chat`` encode with
    ``add_special_tokens=False``. Whoever encodes a rendered chat does the same.

    Raises RecipeError as `train` does.
    """
    config = {
        **SPECIAL_TOKENS,
        "add_bos_token": True,
        "add_eos_token": False,
        "chat_template": _data("chat_template.jinja"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": MODEL_MAX_LENGTH,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {
        "tokenizer.json": train(vocab_size).to_str(pretty=True).encode(),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(SPECIAL_TOKENS),
    }


def _data(name: str) -> str:
    return (resource_files("fixturegen") / "data" / name).read_text(encoding="utf-8")


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
