"""What a user may name to be checked: a checkpoint, a config.json, a recipe or a hub id."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fixturegen.config import EAGLE3_ARCHITECTURES, EAGLE_ARCHITECTURE, ModelConfig
from fixturegen.errors import CheckpointError, ConfigError, FixturegenError, HubError, RecipeError
from fixturegen.fields import nearest

#: Refuse to parse files larger than this: a config.json has a few kilobytes, DeepSeek-V3's index
#: 9 MB.
LARGEST_CONFIG, LARGEST_INDEX = 2**22, 2**28

#: Model classes of the engine whose layers are understood.
ARCHITECTURES = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepSeekMTPModel",
    EAGLE_ARCHITECTURE,
    *EAGLE3_ARCHITECTURES,
)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model to check: a target and, where there is one, its Eagle draft."""

    name: str
    config: ModelConfig
    draft: ModelConfig | None = None
    #: Tensor names of the checkpoint, None for a bare config or a recipe.
    names: Collection[str] | None = None
    draft_names: Collection[str] | None = None
    #: Target lines that a recipe claims.
    claims: tuple[str, ...] = ()


def load(name: str, draft: str | None = None) -> Model:
    """Read MODEL and, if given, its draft. Of hub repositories only config.json and the headers of
    safetensors files are fetched.

    Raises ConfigError, CheckpointError, RecipeError or HubError, each in one line.
    """
    model = _load(name)
    if draft is None:
        return model
    other = _load(draft)
    return Model(
        name=model.name,
        config=model.config,
        names=model.names,
        draft=other.draft or other.config,
        draft_names=other.draft_names if other.draft else other.names,
        claims=model.claims,
    )


def _load(name: str) -> Model:
    path = Path(name)
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # a name too long, or with a NUL, or a locked folder
        raise ConfigError(f"{name[:60]!r}: {getattr(error, 'strerror', error)}") from None
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".json" or (path.is_file() and path.suffix not in (".yaml", ".yml")):
        return Model(name=name, config=_config(_read(path), name))
    if path.suffix in (".yaml", ".yml") or "/" not in name:
        return _recipe(name)
    if name.count("/") == 1 and not name.startswith((".", "/")):
        return _hub(name)
    raise ConfigError(f"{name}: no such folder, config.json, recipe or hub id")


def _folder(path: Path) -> Model:
    if (path / "target" / "config.json").is_file():
        target, draft = path / "target", path / "draft"
        return Model(
            name=str(path),
            config=_config(_read(target / "config.json"), str(target / "config.json")),
            names=_names(target),
            draft=_config(_read(draft / "config.json"), str(draft / "config.json")),
            draft_names=_names(draft),
        )
    config = path / "config.json"
    if not config.is_file():
        raise CheckpointError(f"{path}: no config.json here, nor in target/")
    return Model(name=str(path), config=_config(_read(config), str(config)), names=_names(path))


def _read(path: Path, largest: int = LARGEST_CONFIG) -> Any:
    try:
        if not path.is_file() and path.exists():
            raise ConfigError(f"{path}: not a file")
        if path.stat().st_size > largest:
            raise ConfigError(f"{path}: larger than {largest >> 20} MiB, which no such file is")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {' '.join(str(error).split())}") from None


def _config(data: Any, where: str) -> ModelConfig:
    config = ModelConfig.from_dict(data, where)
    if config.architectures[0] not in ARCHITECTURES:
        raise ConfigError(
            f"{where}: architectures {config.architectures[0]!r} is not understood; "
            f"known: {', '.join(ARCHITECTURES)}" + nearest(config.architectures[0], ARCHITECTURES)
        )
    return config


def _names(folder: Path) -> frozenset[str] | None:
    """Names of all tensors, from the index or the headers; None when there is no shard.

    An index alone, as published ones are fetched, is taken at its word; where shards lie beside it,
    all that it names must be there and whole.
    """
    from fixturegen.shards import read_header

    shards = sorted(folder.glob("*.safetensors"))
    headers = frozenset(name for shard in shards for name in read_header(shard))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weights = _read(index, LARGEST_INDEX)
        table = weights.get("weight_map") if isinstance(weights, dict) else None
        if not isinstance(table, dict):
            raise CheckpointError(f"{index}: weight_map is missing")
        if shards and not table.keys() <= headers:
            lost = min(table.keys() - headers)
            raise CheckpointError(f"{folder}: {lost} is in the index and in no shard")
        return frozenset(table)
    return headers if shards else None


def _recipe(name: str) -> Model:
    from fixturegen.recipe import load_recipe

    try:
        recipe = load_recipe(name)
    except RecipeError as error:
        if Path(name).suffix:
            raise
        raise RecipeError(
            f"{error}; a hub id has the form owner/name, a folder or file must exist"
        ) from None
    return from_recipe(recipe)


def from_recipe(recipe: Any) -> Model:
    """A recipe's target and draft as they would be built."""
    from fixturegen.recipe import DRAFT, TARGET

    plans = {plan.role: plan for plan in recipe.checkpoints}
    draft = plans.get(DRAFT)
    # a whole layout needs no look at its names
    names = {r: _stored(p) if recipe.leave_out or recipe.extra else None for r, p in plans.items()}
    return Model(
        name=recipe.name,
        config=plans[TARGET].config,
        draft=draft.config if draft else None,
        names=names[TARGET],
        draft_names=names.get(DRAFT),
        claims=recipe.targets,
    )


def _stored(plan: Any) -> frozenset[str]:
    from fixturegen.shards import stored

    return frozenset(entry.name for t in plan.tensors for entry in stored(t, plan.config))


def _hub(repo: str) -> Model:
    """config.json and tensor names of a hub repository (HF_ENDPOINT, HF_HUB_OFFLINE hold)."""
    try:
        urlsplit(os.environ.get("HF_ENDPOINT", "")).port  # noqa: B018  huggingface_hub dies of it
    except ValueError as error:
        raise HubError(f"{repo}: HF_ENDPOINT is not an address: {error}") from None
    from huggingface_hub import HfApi, errors, hf_hub_download

    name = repo
    repo, _, revision = repo.partition("@")
    if not repo.strip("/ "):
        raise HubError(f"{name}: not a hub id; the form is owner/name")
    try:
        reached = _answers(repo, revision or None)
        path = hf_hub_download(
            repo, "config.json", revision=revision or None, local_files_only=not reached
        )
    except Exception as error:  # one line, whatever the hub, its client or the network did
        raise HubError(_why(repo, error)) from None
    config = _config(_read(Path(path)), f"{repo}/config.json")
    names: frozenset[str] | None = None  # stays so offline and without safetensors
    if not reached:
        return Model(name=repo, config=config)
    try:
        metadata = HfApi(library_name="fixturegen").get_safetensors_metadata(
            repo, revision=revision or None
        )
        names = frozenset(metadata.weight_map)
    except errors.NotASafetensorsRepoError:
        pass
    except Exception as error:
        raise HubError(_why(repo, error)) from None
    return Model(name=repo, config=config, names=names)


def _answers(repo: str, revision: str | None) -> bool:
    """Whether the hub can be asked, by one request: a download would retry for half a minute.

    Raises what the hub answers for a repository or file that it does not have.
    """
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    if constants.HF_HUB_OFFLINE:
        return False
    url = hf_hub_url(repo, "config.json", revision=revision)
    try:
        get_hf_file_metadata(url)  # one request, no retries
    except (errors.HfHubHTTPError, errors.HFValidationError):
        raise
    except Exception:  # no name, no route, no answer: whatever the client makes of it
        return False
    return True


def _why(repo: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, FixturegenError):
        return str(error)
    if isinstance(error, errors.GatedRepoError):
        return f"{repo}: gated; accept its terms on the hub and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{repo}: no such repository on the hub, or it is private and needs HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo}: no such revision; check the branch, tag or commit after @"
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(
        error, errors.LocalEntryNotFoundError
    ):
        return f"{repo}: the repository has no config.json"
    if isinstance(error, errors.HFValidationError):
        return f"{repo}: not a hub id; the form is owner/name"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return f"{repo}: HF_HUB_OFFLINE is set and config.json is not in the local cache"
    return f"{repo}: no answer from {constants.ENDPOINT}: check the network and HF_ENDPOINT"
