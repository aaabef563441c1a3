"""Recipes: small YAML files that say what to build.

The recipes that ship are in ``configs/``; any other file may be named by its path. Every key can be
overridden with ``key=value`` (``--set`` on the command line), by its own name or, where that is not
unique, by its dotted path. ``base: NAME`` takes another recipe's keys first.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fixturegen.config import EAGLE_ARCHITECTURE, ModelConfig
from fixturegen.errors import ConfigError, RecipeError
from fixturegen.fields import key, nearest, read
from fixturegen.layouts import Tensor, tensors
from fixturegen.planted.knobs import PlantedKnobs

#: where a checkpoint of a pair lies below the recipe's folder
TARGET, DRAFT = "target", "draft"


@dataclass(frozen=True, kw_only=True)
class StandsFor:
    """A hub model that upstream tests name and this recipe can replace."""

    model: str = key("hub id")
    part: str = key("which checkpoint of the recipe", TARGET, choices=(TARGET, DRAFT))
    tests: tuple[str, ...] = key("upstream tests that use it", ())


@dataclass(frozen=True, kw_only=True)
class ExtraTensor:
    """A tensor that the architecture does not have, for a checkpoint broken on purpose."""

    name: str = key("tensor name")
    shape: tuple[int, ...] = key("its size", at_least=1, at_most=2**31 - 1)
    part: str = key("which checkpoint of the recipe", TARGET, choices=(TARGET, DRAFT))


@dataclass(frozen=True)
class Plan:
    """One checkpoint folder to write: its place below the recipe's folder, config and tensors."""

    subfolder: str
    role: str
    config: ModelConfig
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to build. ``model`` has the dimensions, by Hugging Face's key names."""

    name: str = key("recipe name", "")
    description: str = key("what it is")
    purpose: str = key("what it is for")
    stands_for: tuple[StandsFor, ...] = key("hub models it can replace", ())
    targets: tuple[str, ...] = key("engine targets that it claims to run on", ())
    weights: str = key("kind of weights", "random", choices=("random", "planted"))
    draft: str = key("draft beside the target", "none", choices=("none", "mtp", "eagle"))
    seed: int = key("seed of all values", 0, at_least=0, at_most=2**63 - 1)
    mtp_embeddings: str = key(
        "embed_tokens and shared_head.head of MTP layers", "copy", choices=("copy", "omit")
    )
    draft_embeddings: str = key(
        "embed_tokens and lm_head of an Eagle draft", "shared", choices=("own", "shared")
    )
    leave_out: tuple[str, ...] = key("patterns of tensors to leave out, to break a loader", ())
    extra: tuple[ExtraTensor, ...] = key("tensors to add, to break a loader", ())
    tokenizer_vocab_size: int = key("token ids to train", 4096, at_least=259, at_most=2**31 - 1)
    model: ModelConfig = key("dimensions and routing")
    planted: PlantedKnobs = PlantedKnobs()

    def validate(self, where: str) -> None:
        """Raise RecipeError when keys contradict each other."""
        self.model.validate(f"{where}: model")
        if Path(self.name).name != self.name or self.name == "..":
            raise RecipeError(f"{where}: name {self.name!r} is a path; allowed: a folder's name")
        nextn = self.model.num_nextn_predict_layers
        if self.draft == "mtp" and nextn == 0:
            raise RecipeError(
                f"{where}: draft is mtp but num_nextn_predict_layers is 0; allowed: 1 or more"
            )
        if self.draft != "mtp" and nextn > 0:
            raise RecipeError(
                f"{where}: draft is {self.draft} but num_nextn_predict_layers is {nextn}; "
                "set it to 0, or draft to mtp"
            )
        if self.tokenizer_vocab_size > self.model.vocab_size:
            raise RecipeError(
                f"{where}: tokenizer_vocab_size {self.tokenizer_vocab_size} is more than "
                f"vocab_size {self.model.vocab_size}; the model needs a row for every token"
            )
        if self.model.num_key_value_heads not in (None, self.model.num_attention_heads):
            raise RecipeError(
                f"{where}: num_key_value_heads {self.model.num_key_value_heads} must equal "
                f"num_attention_heads {self.model.num_attention_heads}: MLA has no groups"
            )
        quantization = self.model.quantization
        if quantization is not None and quantization.method != "fp8":
            raise RecipeError(
                f"{where}: quantization.method {quantization.method} cannot be built; allowed: fp8"
            )
        if quantization is not None and quantization.weight_block_size is None:
            raise RecipeError(
                f"{where}: weight_block_size is null; allowed: two sizes, as 128, 128"
            )
        if self.leave_out or self.extra:
            self._validate_edits(where)
        if self.weights == "planted":
            from fixturegen.planted import validate as validate_planted

            validate_planted(self, where)

    def _validate_edits(self, where: str) -> None:
        """Raise RecipeError when ``leave_out`` or ``extra`` do not fit the layout."""
        if self.weights == "planted":
            raise RecipeError(
                f"{where}: leave_out and extra need weights: random; the output of planted weights "
                "is known for the whole checkpoint only"
            )
        for plan in self._whole:
            names = {t.name for t in plan.tensors}
            for tensor in (e for e in self.extra if e.part == plan.role):
                if tensor.name in names or not tensor.shape:
                    what = "it is there already" if tensor.shape else "its shape is empty"
                    raise RecipeError(f"{where}: extra {tensor.name}: {what}")
                names.add(tensor.name)
        names = {t.name for plan in self._whole for t in plan.tensors}
        for pattern in self.leave_out:
            if not fnmatch.filter(names, pattern):
                raise RecipeError(f"{where}: leave_out {pattern}: no tensor has such a name")
        if not all(plan.tensors for plan in self.checkpoints):
            raise RecipeError(f"{where}: leave_out leaves no tensor")

    @cached_property
    def checkpoints(self) -> tuple[Plan, ...]:
        """The checkpoints this recipe makes: one, or a target and its Eagle draft."""
        return tuple(
            dataclasses.replace(plan, tensors=(*self._kept(plan), *self._added(plan)))
            for plan in self._whole
        )

    def _kept(self, plan: Plan) -> Iterator[Tensor]:
        return (
            tensor
            for tensor in plan.tensors
            if not any(fnmatch.fnmatchcase(tensor.name, pattern) for pattern in self.leave_out)
        )

    def _added(self, plan: Plan) -> Iterator[Tensor]:
        return (
            Tensor(e.name, e.shape, "linear" if len(e.shape) > 1 else "norm", "extra")
            for e in self.extra
            if e.part == plan.role
        )

    @cached_property
    def _whole(self) -> tuple[Plan, ...]:
        """The checkpoints with all tensors of their architectures and no other."""
        omit = self.draft == "mtp" and self.mtp_embeddings == "omit"
        target = _present(self.model, drop_optional=omit)
        if self.draft != "eagle":
            return (Plan("", TARGET, self.model, target),)
        config = dataclasses.replace(
            self.model,
            architectures=(EAGLE_ARCHITECTURE,),
            num_hidden_layers=1,
            first_k_dense_replace=0,
            num_nextn_predict_layers=1,  # vLLM divides by it
        )
        draft = _present(config, drop_optional=self.draft_embeddings == "shared")
        return (
            Plan(TARGET, TARGET, self.model, target),
            Plan(DRAFT, DRAFT, config, draft),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that :meth:`from_dict` reads back, for manifests."""
        data = dataclasses.asdict(self)
        return {k: v for k, v in data.items() if v or k not in ("leave_out", "extra")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str) -> Recipe:
        """Read a recipe from plain data; raises RecipeError."""
        recipe = read(cls, data, where, RecipeError)
        if recipe.model.num_key_value_heads is None:
            model = dataclasses.replace(
                recipe.model, num_key_value_heads=recipe.model.num_attention_heads
            )
            recipe = dataclasses.replace(recipe, model=model)
        try:
            recipe.validate(where)
        except ConfigError as error:
            raise RecipeError(str(error)) from None
        return recipe


def _present(config: ModelConfig, *, drop_optional: bool) -> tuple[Tensor, ...]:
    return tuple(t for t in tensors(config) if not (drop_optional and t.optional))


def configs_folder() -> Path:
    """The folder of the recipes that ship (``configs/`` in a checkout, in the package else)."""
    here = Path(__file__).parent
    packaged = here / "configs"
    return packaged if packaged.is_dir() else here.parent / "configs"


def list_recipes() -> list[str]:
    """Names of the recipes that ship, those under ``broken/`` not counted."""
    return sorted(p.stem for p in configs_folder().glob("*.yaml"))


def load_recipe(name: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by name or path and apply ``key=value`` overrides.

    Raises RecipeError naming file, key, what was given and what is allowed.
    """
    path = _find(os.fspath(name))
    data = _read_yaml(path, ())
    data["name"] = path.stem
    for override in overrides:
        _override(data, override)
    return Recipe.from_dict(data, str(path))


def _read_yaml(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The keys of a recipe file over those of its ``base``."""
    if path in seen:
        raise RecipeError(f"{path}: base names itself, through {' -> '.join(p.stem for p in seen)}")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise RecipeError(
            f"{path}:{line} is not YAML: {getattr(error, 'problem', error)}"
        ) from None
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: expected a mapping of keys, got {type(data).__name__}")
    base = data.pop("base", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise RecipeError(f"{path}: base is {base!r}; allowed: the name of a recipe")
    return _merge(_read_yaml(_find(base), (*seen, path)), data)


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``under``, section by section."""
    merged = dict(under)
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(under.get(name), dict)
        merged[name] = _merge(under[name], value) if both else value
    return merged


def _find(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise RecipeError(f"{name}: no such file")
        return path
    for folder in (configs_folder(), configs_folder() / "broken"):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = list_recipes()
    hint = nearest(name, known) or f"; known: {', '.join(known)}"
    raise RecipeError(f"recipe {name!r} does not exist{hint}")


#: classes of the recipe's nested mappings, to resolve the path of an override
_NESTED: dict[str, type] = {"model": ModelConfig, "planted": PlantedKnobs}


def _paths() -> dict[str, list[str]]:
    """Name, or any dotted tail of a path -> the full paths in a recipe that end so."""
    from fixturegen.config import Quantization, RopeScaling

    classes: dict[str, type] = {
        "": Recipe,
        **_NESTED,
        "model.rope_scaling": RopeScaling,
        "model.quantization": Quantization,
    }
    paths: dict[str, list[str]] = {}
    for prefix, cls in classes.items():
        for f in dataclasses.fields(cls):
            path = f"{prefix}.{f.name}" if prefix else f.name
            parts = path.split(".")
            for i in range(len(parts)):
                paths.setdefault(".".join(parts[i:]), []).append(path)
    return paths


def _override(data: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise RecipeError(f"--set {text!r}: expected key=value")
    paths = _paths()
    found = [name] if name in paths.get(name, ()) else paths.get(name, [])
    if not found:
        hint = nearest(name, paths) or f"; known keys: {', '.join(sorted(paths))}"
        raise RecipeError(f"--set {text!r}: unknown key {name!r}{hint}")
    if len(found) > 1:
        raise RecipeError(f"--set {text!r}: {name!r} is ambiguous; write {' or '.join(found)}")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise RecipeError(f"--set {text!r}: {value!r} is not a YAML value") from None
    *sections, leaf = found[0].split(".")
    place = data
    for section in sections:
        if not isinstance(place.get(section), dict):
            place[section] = {}
        place = place[section]
    place[leaf] = parsed
