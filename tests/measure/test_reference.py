"""The reference models against the oracle, against themselves and against a real vLLM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from fixturegen import Oracle, load_recipe
from fixturegen.errors import CheckpointError
from fixturegen.measure.reference import (
    Batch,
    Reference,
    count,
    greedy,
    hidden_states,
    next_logits,
    propose,
)
from fixturegen.measure.subject import random_prompts
from fixturegen.planted.oracle import total
from tests.measure.conftest import STEPS, TOKENS
from tests.planted.run_vllm import generate

pytestmark = pytest.mark.slow

RANDOM, PLANTED, EAGLE = "deepseek-v3-mtp-random", "deepseek-v3-mtp", "deepseek-v3-eagle"


@pytest.mark.parametrize("name", [PLANTED, EAGLE, "deepseek-v3-mtp-fp8"])
def test_target_and_draft_agree_with_the_oracle(subjects, checkpoints, name):
    subject = subjects(name)
    oracle = Oracle.load(checkpoints(name))
    target, draft = subject.reference.target, subject.reference.draft
    logits = target.head(subject.hidden[:, subject.batch.prompt - 1 : -1])
    assert logits.argmax(-1).tolist() == oracle.continuation(subject.prompts, TOKENS + STEPS - 1)
    for k in (1, STEPS):
        proposed = propose(draft, subject.batch, subject.hidden, k).tolist()
        counters = count(subject.generated, proposed, TOKENS)
        assert counters == total(oracle.speculate(subject.prompts, TOKENS, k), k)
        assert 0 < counters.accepted_tokens < counters.draft_tokens


def test_generation_in_pieces_is_generation(subject):
    target = subject.reference.target
    right = [tokens[:TOKENS] for tokens in subject.generated]
    assert greedy(target, subject.prompts, TOKENS) == right
    assert greedy(target, subject.prompts, TOKENS, chunk=16) == right
    texts = subject.part(0, 4, TOKENS)
    assert next_logits(target, texts).argmax(-1).tolist() == right


@pytest.mark.parametrize("name", [RANDOM, EAGLE])
def test_chains_in_one_cache_are_chains_one_by_one(subjects, name):
    """Each chain alone: its text, then one slot at a time."""
    subject = subjects(name)
    draft, batch = subject.reference.draft, subject.batch
    together = propose(draft, batch, subject.hidden, STEPS)
    prompt, row = batch.prompt, 1
    pad = int(batch.padding[row])
    ids, hidden = batch.ids[row : row + 1, pad:], subject.hidden[row : row + 1, pad:]
    for generated in (0, 3):
        slots = prompt - pad + generated
        text = Batch(ids[:, :slots], torch.tensor([0]), slots)
        cache = transformers.DynamicCache()
        with torch.inference_mode():
            read, recycled = draft.run(
                ids[:, 1 : slots + 1],
                text.positions,
                hidden[:, :slots],
                text.visible,
                text.positions,
                cache,
            )
            chain = [int(draft.head(read[:, -1]).argmax())]
            for step in range(1, STEPS):
                at = torch.tensor([[slots - 1 + step]])
                keys = torch.arange(slots + step)[None]
                read, recycled = draft.run(
                    torch.tensor([[chain[-1]]]),
                    at,
                    recycled[:, -1:],
                    torch.ones(1, 1, slots + step, dtype=torch.bool),
                    keys,
                    cache,
                )
                chain.append(int(draft.head(read[:, -1]).argmax()))
        assert together[row, generated].tolist() == chain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc.weight"), "fc"),
        (lambda t: t.update({"fc.bias": torch.zeros(3)}), "fc"),
        (lambda t: t.update({"other.weight": torch.zeros(3)}), "other.weight"),
    ],
)
def test_a_draft_with_wrong_tensors_is_refused(checkpoints, tmp_path, change, message):
    path = shutil.copytree(checkpoints(EAGLE), tmp_path / "pair")
    rewrite(path / "draft", change)
    with pytest.raises(CheckpointError, match=message):
        Reference.load(path)


@pytest.mark.vllm
def test_a_broken_draft_drafts_as_in_vllm(checkpoints, tmp_path):
    """Neither right nor useless: the oracle does not know these counters, only the models do."""
    path = shutil.copytree(checkpoints(PLANTED), tmp_path / "broken")
    rewrite(path, lambda t: t["model.layers.3.mlp.experts.5.down_proj.weight"].zero_())
    prompts = random_prompts(load_recipe(PLANTED), 8, seed=2)
    (answer,) = generate(path, [prompts], 24, STEPS)
    metrics = answer.metrics
    reference = Reference.load(path, "float32")
    oracle = Oracle.load(path)
    generated = oracle.continuation(prompts, 24 + STEPS - 1)
    batch = Batch.of(prompts, generated)
    proposed = propose(reference.draft, batch, hidden_states(reference.target, batch), STEPS)
    counters = count(generated, proposed.tolist(), 24)
    intact = total(oracle.speculate(prompts, 24, STEPS), STEPS)
    assert 0 < counters.accepted_tokens < intact.accepted_tokens
    assert metrics["drafts"] == counters.drafts
    assert metrics["draft_tokens"] == counters.draft_tokens
    assert metrics["accepted_tokens"] == counters.accepted_tokens
    assert tuple(metrics["accepted_tokens_per_pos"]) == counters.accepted_per_position


def rewrite(folder: Path, change) -> None:
    """Change the tensors of a checkpoint's only shard."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
