"""The tokenizer: nothing lost, one BOS, the same bytes everywhere, as transformers reads it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixturegen.errors import RecipeError
from fixturegen.tokenizer import SMALLEST_VOCAB, SPECIAL_TOKENS, files, train

GOLDEN = "4dad87360b406ebc83b8cded8c1f0ea929164cf2086cca9c5fe7aac0cb73207d"
BOS, EOS, PAD = 0, 1, 2
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3+3?"},
]
CHAT_TEXT = "<|bos|>Be brief.\n\nUser: 2+2?\n\nAssistant: 4<|eos|>User: And 3+3?\n\nAssistant:"
#: a prompt in the style of few-shot arithmetic suites, not in the corpus
FIVE_SHOT = (Path(__file__).parent / "five_shot.txt").read_text(encoding="utf-8")

any_text = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "<|" not in text)
#: the first example trains the tokenizer, which takes longer than hypothesis allows by default
training = settings(deadline=None)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The tokenizer as transformers' AutoTokenizer loads it from a checkpoint."""
    import transformers

    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "config.json").write_text('{"model_type": "deepseek_v3"}')
    for name, content in files(4096).items():
        (folder / name).write_bytes(content)
    return transformers.AutoTokenizer.from_pretrained(folder)


@training
@given(any_text)
def test_text_survives(text):
    for vocab_size in (SMALLEST_VOCAB, 4096):
        tokenizer = train(vocab_size)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@training
@given(st.binary())
def test_every_byte_has_an_id(data):
    from tokenizers import pre_tokenizers

    tokenizer = train(4096)
    # Byte-level BPE writes bytes as printable characters: Latin-1 ones as themselves, the others
    # as the characters from U+0100 on, in the order of the bytes.
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    shifted = iter(sorted(c for c in alphabet if ord(c) > 255))
    symbol = [chr(b) if chr(b) in alphabet else next(shifted) for b in range(256)]
    ids = [tokenizer.token_to_id(symbol[byte]) for byte in data]
    assert None not in ids
    assert tokenizer.decode(ids) == data.decode("utf-8", errors="replace")


@settings(training, max_examples=50)
@given(any_text)
def test_one_bos_for_plain_text(text):
    tokenizer = train(4096)
    ids = tokenizer.encode(text).ids
    assert ids[0] == BOS and ids.count(BOS) == 1 and EOS not in ids
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids[1:]


def test_special_tokens_come_first():
    tokenizer = train(4096)
    assert [tokenizer.id_to_token(i) for i in range(3)] == list(SPECIAL_TOKENS.values())
    assert tokenizer.get_vocab_size() == 4096


def test_only_what_the_corpus_gives():
    largest = train(129_280).get_vocab_size()
    assert 4096 < largest < 20_000
    assert train(largest + 1).to_str() == train(largest).to_str()
    assert train(SMALLEST_VOCAB).get_vocab_size() == SMALLEST_VOCAB


@pytest.mark.parametrize("vocab_size", [-1, 0, 256, SMALLEST_VOCAB - 1])
def test_vocabulary_too_small(vocab_size):
    with pytest.raises(RecipeError, match=rf"^tokenizer_vocab_size is {vocab_size}; .* least 259"):
        files(vocab_size)


def test_five_shot_prompt():
    """About 4,000 characters leave a third of a context of 2,048 tokens for the answer."""
    assert len(FIVE_SHOT) > 3_900
    assert len(train(4096).encode(FIVE_SHOT)) < 1_400


def test_corpus_arithmetic():
    """The worked answers of the corpus are right: ``<<6*7=42>>``."""
    from fixturegen.tokenizer import _data

    sums = [part.split(">>")[0] for part in _data("corpus.txt").split("<<")[1:] if ">>" in part]
    assert len(sums) > 150
    for line in sums:
        term, value = line.split("=")
        assert eval(term, {"__builtins__": {}}) == float(value), line


def test_golden_files():
    digest = hashlib.sha256()
    for name, content in sorted(files(4096).items()):
        digest.update(name.encode() + b"\0" + content)
    assert digest.hexdigest() == GOLDEN


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing(threads):
    code = (
        "import hashlib; from fixturegen.tokenizer import files;"
        "print(hashlib.sha256(files(4096)['tokenizer.json']).hexdigest())"
    )
    variables = {
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hashlib.sha256(files(4096)["tokenizer.json"]).hexdigest()


def test_files_agree():
    written = files(4096)
    config = json.loads(written["tokenizer_config.json"])
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert json.loads(written["special_tokens_map.json"]) == SPECIAL_TOKENS
    assert SPECIAL_TOKENS.items() <= config.items()


def test_transformers_plain_text(loaded):
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (BOS, EOS, PAD)
    assert len(loaded) == 4096
    for text in ("", "Hello, world", "  naïve\n\n\tκόσμε 你好 🙂", FIVE_SHOT):
        ids = loaded(text)["input_ids"]
        assert ids == train(4096).encode(text).ids
        assert loaded.decode(ids, skip_special_tokens=True) == text


def test_transformers_chat(loaded):
    text = loaded.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == CHAT_TEXT
    ids = loaded.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ids == loaded(text, add_special_tokens=False)["input_ids"]
    assert ids[0] == BOS and ids.count(BOS) == 1 and ids.count(EOS) == 1
    assert loaded.apply_chat_template(CHAT[:2], tokenize=False) == CHAT_TEXT.split("Assistant")[0]


def test_chat_refuses_other_roles(loaded):
    with pytest.raises(Exception, match="role tool is unknown; allowed: system, user, assistant"):
        loaded.apply_chat_template([{"role": "tool", "content": "42"}])


def test_transformers_keeps_the_files(loaded, tmp_path):
    """Saved by transformers and loaded again, the ids are the same."""
    import transformers

    loaded.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again(FIVE_SHOT)["input_ids"] == loaded(FIVE_SHOT)["input_ids"]
    assert again.apply_chat_template(CHAT, tokenize=False) == loaded.apply_chat_template(
        CHAT, tokenize=False
    )


VLLM_PROMPTS = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], enforce_eager=True, max_model_len=256, max_num_seqs=4)
    one = SamplingParams(max_tokens=1, temperature=0)
    plain, chat = llm.generate("Hello, world", one)[0], llm.chat(json.loads(sys.argv[2]), one)[0]
    print(json.dumps([plain.prompt_token_ids, chat.prompt_token_ids]))
"""


@pytest.mark.vllm
def test_vllm_gives_one_bos(tmp_path):
    from fixturegen import build, load_recipe

    folder = build(load_recipe("deepseek-v3-mtp-random"), tmp_path / "checkpoint").path
    script = tmp_path / "prompts.py"
    script.write_text(VLLM_PROMPTS)
    done = subprocess.run(
        [sys.executable, str(script), str(folder), json.dumps(CHAT)],
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    plain, chat = json.loads(next(li for li in done.stdout.splitlines() if li.startswith("[[")))
    assert plain == train(4096).encode("Hello, world").ids
    assert chat == train(4096).encode(CHAT_TEXT, add_special_tokens=False).ids
    assert plain.count(BOS) == chat.count(BOS) == 1
