"""The model card of a checkpoint: README.md on the hub, made from the checkpoint itself."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fixturegen.inspection import Inspection, inspect
from fixturegen.recipe import DRAFT, Recipe
from fixturegen.units import human

TAGS = ("fixturegen", "test-fixture", "vllm", "speculative-decoding", "deepseek_v3")


def model_card(folder: Path, *, repo: str, partner: str | None = None) -> str:
    """The card of the checkpoint in `folder`, as it will be served from `repo`.

    `partner` is the repository of the other half of an Eagle pair. The text is a function of the
    checkpoint, the repository's name and the catalogue of kernel bounds, so that pushing twice
    changes nothing. Raises CheckpointError for a folder without a manifest.
    """
    from huggingface_hub import ModelCardData

    from fixturegen.manifest import Manifest

    manifest = Manifest.load(folder)
    (seen,) = inspect(folder)
    recipe = manifest.load_recipe(str(folder))
    role = manifest.role
    kind = f"{recipe.weights}-weights"
    data = ModelCardData(
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=[*TAGS, kind, *([recipe.draft] if recipe.draft != "none" else [])],
        inference=False,
    )
    name = f"{recipe.name} ({role})" if recipe.draft == "eagle" else recipe.name
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {name}",
        f"{recipe.description}. {recipe.purpose}".strip(),
        "**A test fixture, not a language model.** Its weights are made up and its text means "
        "nothing. Do not deploy it.",
        _stands_for(recipe, role),
        "## Use",
        _use(recipe, role, repo, partner),
        "## Output known in advance",
        _oracle(recipe, folder),
        "## Dimensions",
        _dimensions(seen),
        "## Tensors",
        _tensors(seen),
        "## Kernel bounds",
        _bounds(recipe, role),
        "## Reproduce",
        _reproduce(recipe, role, manifest.algorithm, manifest.content_hash),
        "## Licence",
        "Apache-2.0. No data and no other model went into it; the tokenizer was trained on text "
        "written for fixturegen.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```"


def _stands_for(recipe: Recipe, role: str) -> str:
    models = [entry for entry in recipe.stands_for if entry.part == role]
    if not models:
        return ""
    return "Stands in for " + "; ".join(
        f"`{entry.model}`" + (f" ({', '.join(entry.tests)})" if entry.tests else "")
        for entry in models
    )


def _use(recipe: Recipe, role: str, repo: str, partner: str | None) -> str:
    target, draft = (partner, repo) if role == DRAFT else (repo, partner)
    target, draft = target or "TARGET_REPOSITORY", draft or "DRAFT_REPOSITORY"
    vllm = f'"{target}"'
    sglang = f"python -m sglang.launch_server --model-path {target}"
    if recipe.draft == "eagle":
        vllm += (
            f', speculative_config={{"method": "eagle", "model": "{draft}",'
            ' "num_speculative_tokens": 3}'
        )
        sglang += f" --speculative-algorithm EAGLE --speculative-draft-model-path {draft}"
    elif recipe.draft == "mtp":
        vllm += ', speculative_config={"method": "mtp", "num_speculative_tokens": 3}'
        sglang += " --speculative-algorithm EAGLE"
    blocks = [
        ("vLLM", "python", f"from vllm import LLM\n\nllm = LLM({vllm})"),
        ("SGLang", "sh", sglang),
        (
            "transformers (the target model)",
            "python",
            "from transformers import AutoModelForCausalLM\n\n"
            f'model = AutoModelForCausalLM.from_pretrained("{target}")',
        ),
        (
            "pytest, with `pip install fixturegen`",
            "python",
            "import vllm\n\n\n"
            f"def test_it(fixturegen_checkpoint):\n"
            f'    checkpoint = fixturegen_checkpoint("{recipe.name}")\n'
            "    llm = vllm.LLM(**checkpoint.llm_kwargs())",
        ),
    ]
    return "\n\n".join(f"{title}:\n\n{_code(language, text)}" for title, language, text in blocks)


def _oracle(recipe: Recipe, folder: Path) -> str:
    if recipe.weights != "planted":
        return (
            "Not for this checkpoint: its weights are random. Use it to test loading and kernels, "
            "and compare an engine only with itself."
        )
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    parts = [
        "The weights are planted: the greedy continuation of any prompt, the margin at each step, "
        "and the number of drafts accepted are known without running a model. `expected.json` "
        "holds golden prompts, token ids, margins and acceptance counts for any engine in any "
        "language; `fixturegen oracle` computes them for other prompts.",
        f"The right token leads by at least {expected['guaranteed_margin']:.3g} logits at every "
        f"step. The {len(expected['prompts'])} golden prompts have {expected['max_tokens']} "
        "output tokens each.",
    ]
    if expected["speculation"]:
        header = ("speculative tokens", "drafts", "drafted", "accepted", "accepted by position")
        rows = [
            (
                tokens,
                counts["drafts"],
                counts["draft_tokens"],
                counts["accepted_tokens"],
                ", ".join(map(str, counts["accepted_per_position"])),
            )
            for tokens, counts in expected["speculation"].items()
        ]
        parts.append(_table(header, rows))
    knobs = dataclasses.asdict(recipe.planted)
    knob_rows = [(f"`{key}`", f"`{json.dumps(value)}`") for key, value in knobs.items()]
    return "\n\n".join([*parts, _table(("knob", "value"), knob_rows)])


def _dimensions(seen: Inspection) -> str:
    config = seen.config.to_dict()
    config = config.get("model", config)  # an Eagle draft's are nested
    plain = {k: v for k, v in config.items() if not isinstance(v, dict | list)}
    nested = {k: v for k, v in config.items() if isinstance(v, dict)}
    rows = [(f"`{k}`", f"`{json.dumps(v)}`") for k, v in {**plain, **nested}.items()]
    return _table(("key", "value"), rows)


def _tensors(seen: Inspection) -> str:
    rows = [(g.name, g.tensors, human(g.parameters), human(g.nbytes, "B")) for g in seen.groups]
    total = sum(g.parameters for g in seen.groups)
    rows.append(("all", sum(g.tensors for g in seen.groups), human(total), human(seen.nbytes, "B")))
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in seen.dtypes.items())
    table = _table(("group", "tensors", "parameters", "bytes"), rows)
    return f"{table}\n\nStored as {dtypes}."


def _bounds(recipe: Recipe, role: str) -> str:
    """Verdicts on the engine targets that the recipe claims."""
    from fixturegen.check import Target, check
    from fixturegen.check.model import from_recipe

    if not recipe.targets:
        return "The recipe claims no engine target; `fixturegen check` answers for any."
    model = from_recipe(recipe)
    rows = []
    for line in recipe.targets:
        report = check(model.config, Target.parse(line), model.draft)
        prefix = "draft " if role == DRAFT else ""
        chosen = ", ".join(
            f"{key.removeprefix(prefix)} {value}"
            for key, value in report.choices.items()
            if key.startswith("draft ") == (role == DRAFT)
        )
        rows.append((f"`{line}`", report.verdict, chosen or "unknown"))
    return _table(("target", "verdict", "the engine chooses"), rows)


def _reproduce(recipe: Recipe, role: str, algorithm: int, content_hash: str) -> str:
    from fixturegen import __version__
    from fixturegen.errors import FixturegenError
    from fixturegen.recipe import load_recipe

    try:
        shipped = load_recipe(recipe.name)
    except FixturegenError:
        shipped = None
    command = f"fixturegen build {shlex.quote(recipe.name)}"
    note = ""
    if shipped is None or shipped != recipe:
        if shipped and dataclasses.replace(shipped, seed=recipe.seed) == recipe:
            command += f" --seed {recipe.seed}"
        else:
            note = (
                "\n\nThe recipe was changed from the one that ships; as resolved it is the "
                "`recipe` of `fixturegen.json`."
            )
    return (
        f"Seed {recipe.seed}, value algorithm {algorithm}. Every byte follows from the recipe: "
        f"with fixturegen {__version__},\n\n{_code('sh', command)}\n\n"
        f"makes the {role} with content hash `{content_hash}`; "
        f"`fixturegen verify PATH --regenerate` computes all bytes anew and compares them.{note}"
    )
