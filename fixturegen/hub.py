"""Push checkpoints to the Hugging Face hub, and pull them back verified.

One checkpoint is one repository and one commit: `HfApi.create_commit` applies its operations whole
or not at all, and names the parent commit it was prepared for, so that readers never see half a
model and two pushes never mix. Tokens are found by huggingface_hub (``HF_TOKEN``, ``hf auth
login``); nothing here reads, prints or stores one.

Works with huggingface_hub 1.31 and later, 2.x included (whose HTTP client is httpx2).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fixturegen.errors import CheckpointError, FixturegenError, HubError
from fixturegen.manifest import MANIFEST, Manifest
from fixturegen.recipe import DRAFT

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoFile

    from fixturegen.recipe import Recipe

CARD = "README.md"
COLLECTION = "fixturegen fixtures"
ATTEMPTS = 5
TRANSIENT = (408, 429, 500, 502, 503, 504)  # what huggingface_hub itself retries
SILENCE = 120.0  # seconds without a byte before a request counts as lost
RETRY_WAIT = 1.0  # seconds; doubles with each attempt unless the hub says Retry-After

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One file that a push adds, changes or removes; sizes in bytes, None for no file."""

    path: str
    old_size: int | None
    new_size: int | None

    @property
    def kind(self) -> str:
        if self.old_size is None:
            return "added"
        return "removed" if self.new_size is None else "changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class PushPlan:
    """What a push would do to a repository, before anything is written.

    `parent` is the commit that the plan was made against, None for a repository to be created.
    `config_changes` maps a config.json key to its (old, new) value.
    """

    repo: str
    revision: str
    parent: str | None
    new_branch: bool
    changes: tuple[Change, ...]
    old_content_hash: str | None
    new_content_hash: str
    config_changes: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PushResult:
    """Where a push ended: the commit (or pull request) that holds exactly the local files."""

    repo: str
    commit: str
    url: str
    was_pushed: bool


def push(
    path: str | os.PathLike[str],
    repo: str,
    *,
    revision: str = "main",
    private: bool = False,
    create_pr: bool = False,
    tag: str | None = None,
    force: bool = False,
    partner: str | None = None,
    confirm: Callable[[PushPlan], bool] = lambda plan: True,
    api: HfApi | None = None,
) -> PushResult | None:
    """Make `repo` at `revision` hold exactly the checkpoint in `path`, in one commit.

    The checkpoint is verified before (every hash, every tensor) and after (the hub's own hashes,
    safetensors headers and manifest are read back). Nothing is committed where the repository
    already holds the same bytes. `confirm` sees the plan of a push that changes something and may
    refuse it; the result is then None. `partner` is the repository of the other half of an Eagle
    pair, for the model card. A request lost on the way is repeated; blobs that arrived are not
    sent again, and a commit whose answer was lost is recognised by its files.

    Raises:
        CheckpointError: `path` is not a sound fixturegen checkpoint.
        HubError: the hub refused or failed, or `repo` is not ours and `force` is not given. The
            repository is then as it was before, unless the message says otherwise.
    """
    if create_pr and tag:
        raise HubError(
            "--tag with --create-pr: a pull request cannot be tagged; tag it once merged"
        )
    api = api or _api()
    checkpoint = _read_sound(Path(path))
    local = _local_files(checkpoint, repo, partner)
    plan = _plan(checkpoint, local, repo, revision, create_pr=create_pr, force=force, api=api)
    if private and plan.parent and not _retry(repo, lambda: api.repo_info(repo).private):
        raise HubError(f"{repo} exists and is public: drop --private, or change it in its settings")
    if plan.changes:
        if not confirm(plan):
            return None
        commit, url = _commit(plan, local, create_pr=create_pr, private=private, api=api)
    else:
        assert plan.parent is not None
        commit, url = plan.parent, f"{api.endpoint}/{repo}/tree/{plan.parent}"
    _read_back(local, repo, commit, api)
    if tag:
        _tag(repo, tag, commit, api)
    return PushResult(repo=repo, commit=commit, url=url, was_pushed=bool(plan.changes))


def plan_push(
    path: str | os.PathLike[str],
    repo: str,
    *,
    revision: str = "main",
    create_pr: bool = False,
    force: bool = False,
    partner: str | None = None,
    api: HfApi | None = None,
) -> PushPlan:
    """What `push` would do; writes nothing. Raises as `push` does."""
    checkpoint = _read_sound(Path(path))
    local = _local_files(checkpoint, repo, partner)
    api = api or _api()
    return _plan(checkpoint, local, repo, revision, create_pr=create_pr, force=force, api=api)


def add_to_collection(repos: list[str], *, api: HfApi | None = None) -> str:
    """Put `repos` into their organisation's collection of fixtures, made if needed; its URL."""
    api = api or _api()
    namespace = repos[0].split("/")[0]
    collection = _retry(
        namespace,
        lambda: api.create_collection(COLLECTION, namespace=namespace, exists_ok=True),
    )
    for repo in repos:
        _retry(
            repo,
            lambda repo=repo: api.add_collection_item(  # type: ignore[misc]
                collection.slug, repo, "model", exists_ok=True
            ),
        )
    return f"{api.endpoint}/collections/{collection.slug}"


def pull(
    repo: str,
    out: str | os.PathLike[str],
    *,
    revision: str = "main",
    force: bool = False,
    api: HfApi | None = None,
) -> Path:
    """Download a checkpoint into the folder `out`, which appears only once it is whole and sound.

    Only the files that the repository's manifest names are fetched, all from one commit. Their
    sha256s must be the manifest's, and the folder must pass `verify`. An interrupted pull resumes.
    Where `out` already holds the same content nothing is downloaded but the manifest.

    Raises:
        HubError: no such repository or revision, not a fixturegen repository, tampered files, or
            `out` holds something else and `force` is not given.
    """
    from filelock import FileLock

    from fixturegen.builder import replace

    out = Path(out).absolute()
    api = api or _api()
    commit = _retry(repo, lambda: api.repo_info(repo, revision=revision).sha)
    assert commit is not None
    out.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(out.parent / f".{out.name}.lock"):
        partial = out.parent / f".{out.name}.partial"
        manifest = _pull_manifest(repo, commit, partial, api)
        if _holds(out, manifest):
            shutil.rmtree(partial)
            return out
        if out.exists() and not force:
            raise HubError(f"{out} holds something else: choose another folder or pass --force")
        wanted = [MANIFEST, *manifest.files]
        _retry(
            repo,
            lambda: api.snapshot_download(
                repo, revision=commit, local_dir=partial, allow_patterns=wanted, max_workers=4
            ),
        )
        shutil.rmtree(partial / ".cache", ignore_errors=True)
        try:
            _check_hashes(partial, manifest, repo)
        except HubError:
            shutil.rmtree(partial)
            raise
        replace(partial, out)
    return out


def pull_recipe(
    recipe: Recipe,
    out: str | os.PathLike[str],
    sources: Sequence[str],
    *,
    api: HfApi | None = None,
) -> None:
    """Download the checkpoints of `recipe` into the folder `out` from `sources`, ``REPO[@REV]``.

    A repository serves when its manifest holds this very recipe, as resolved, and this algorithm
    version. An Eagle draft is looked for in ``REPO-draft`` as well, where `push` puts it.

    Raises HubError when a checkpoint is in none of them, and as `pull` does.
    """
    from fixturegen.values import ALGORITHM_VERSION

    out = Path(out)
    api = api or _api()
    wanted = json.loads(json.dumps(recipe.to_dict()))
    for plan in recipe.checkpoints:
        for source in sources:
            repo, _, revision = source.partition("@")
            repo += "-draft" if plan.role == DRAFT and not repo.endswith("-draft") else ""
            commit, _ = _head(repo, revision or "main", api)
            found = _remote_json(repo, commit, MANIFEST, api) if commit else {}
            mine = (found.get("recipe"), found.get("algorithm"), found.get("role"))
            if mine == (wanted, ALGORITHM_VERSION, plan.role):
                pull(repo, out / plan.subfolder, revision=commit or "main", api=api)
                break
        else:
            raise HubError(
                f"{recipe.name} ({plan.role}), as resolved here, is in none of "
                f"{', '.join(sources)}: push it there, or build it instead"
            )


# -- local side


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checkpoint:
    path: Path
    manifest: Manifest


def _read_sound(path: Path) -> _Checkpoint:
    from fixturegen.verification import verify

    manifest = Manifest.load(path)
    problems = verify(path)
    if problems:
        raise CheckpointError(f"{path} is not sound, so it is not pushed: {problems[0]}")
    return _Checkpoint(path=path, manifest=manifest)


def _local_files(
    checkpoint: _Checkpoint, repo: str, partner: str | None
) -> dict[str, Path | bytes]:
    """Path in the repository -> the file, or its content for what is made here (the card)."""
    from fixturegen.card import model_card

    files: dict[str, Path | bytes] = {
        name: checkpoint.path / name for name in (*checkpoint.manifest.files, MANIFEST)
    }
    files[CARD] = model_card(checkpoint.path, repo=repo, partner=partner).encode()
    return files


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _size(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _sha256(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_same(source: Path | bytes, remote: RepoFile) -> bool:
    """Compares by the hash the hub keeps: sha256 for LFS files, git's blob id for others."""
    if _size(source) != remote.size:
        return False
    if remote.lfs is not None:
        return _sha256(source) == remote.lfs.sha256
    data = _content(source)
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == remote.blob_id


# -- plan


def _plan(
    checkpoint: _Checkpoint,
    local: Mapping[str, Path | bytes],
    repo: str,
    revision: str,
    *,
    create_pr: bool,
    force: bool,
    api: HfApi,
) -> PushPlan:
    parent, new_branch = _head(repo, revision, api)
    if parent is None and create_pr:
        raise HubError(f"{repo} does not exist, so there is nothing to open a pull request on")
    remote = _tree(repo, parent, api) if parent else {}
    old_manifest = _remote_json(repo, parent, MANIFEST, api) if MANIFEST in remote else None
    if remote.keys() - {".gitattributes", CARD} and old_manifest is None and not force:
        raise HubError(
            f"{repo} was not made by fixturegen (it has files but no {MANIFEST}): "
            "choose another --repo, or pass --force to replace its checkpoint"
        )
    stale = set(old_manifest["files"] if old_manifest else ()) | {
        path for path in remote if path.endswith((".safetensors", ".safetensors.index.json"))
    }
    changes = []
    for path in sorted(local.keys() | stale):
        old, new = remote.get(path), local.get(path)
        if new is None and old is not None:
            changes.append(Change(path=path, old_size=old.size, new_size=None))
        elif new is not None and (old is None or not _is_same(new, old)):
            old_size = old.size if old else None
            changes.append(Change(path=path, old_size=old_size, new_size=_size(new)))
    new_config = json.loads(_content(local["config.json"]))
    changed_paths = {change.path for change in changes}
    old_config = (
        _remote_json(repo, parent, "config.json", api)
        if "config.json" in remote and "config.json" in changed_paths
        else new_config
        if "config.json" in remote
        else {}
    )
    return PushPlan(
        repo=repo,
        revision=revision,
        parent=parent,
        new_branch=new_branch,
        changes=tuple(changes),
        old_content_hash=old_manifest["content_hash"] if old_manifest else None,
        new_content_hash=checkpoint.manifest.content_hash,
        config_changes={
            key: (old_config.get(key), new_config.get(key))
            for key in sorted(old_config.keys() | new_config.keys())
            if old_config.get(key) != new_config.get(key)
        },
    )


def _head(repo: str, revision: str, api: HfApi) -> tuple[str | None, bool]:
    """The commit that `revision` names (None: no such repository), and is it a branch to make."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    def ask() -> tuple[str | None, bool]:
        try:
            return api.repo_info(repo, revision=revision, timeout=SILENCE).sha, False
        except RevisionNotFoundError:
            return api.repo_info(repo, timeout=SILENCE).sha, True
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:
                raise  # the hub did not accept the token
            return None, revision != "main"

    return _retry(repo, ask)


def _tree(repo: str, commit: str, api: HfApi) -> dict[str, RepoFile]:
    from huggingface_hub import RepoFile

    def ask() -> dict[str, RepoFile]:
        items = api.list_repo_tree(repo, revision=commit, recursive=True)
        return {item.path: item for item in items if isinstance(item, RepoFile)}

    return _retry(repo, ask)


def _remote_json(repo: str, commit: str | None, name: str, api: HfApi) -> dict[str, Any]:
    data = _remote_bytes(repo, commit, name, api)
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict) or (
        name == MANIFEST and not {"files", "content_hash"} <= {*found}
    ):
        raise HubError(f"{repo}: {name} cannot be read; is this a fixturegen repository?")
    return found


def _remote_bytes(repo: str, commit: str | None, name: str, api: HfApi) -> bytes:
    """The content of a small file, past any local cache."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = _retry(
            repo, lambda: api.hf_hub_download(repo, name, revision=commit, local_dir=folder)
        )
        return Path(path).read_bytes()


# -- commit


def _commit(
    plan: PushPlan,
    local: Mapping[str, Path | bytes],
    *,
    create_pr: bool,
    private: bool,
    api: HfApi,
) -> tuple[str, str]:
    """(commit, URL) after the plan's changes have landed in one commit."""
    repo, revision, parent = plan.repo, plan.revision, plan.parent
    if parent is None:
        _retry(repo, lambda: api.create_repo(repo, private=private, exist_ok=True))
        parent, _ = _head(repo, "main", api)
        assert parent is not None
    if plan.new_branch:
        _retry(
            repo,
            lambda: api.create_branch(repo, branch=revision, revision=parent, exist_ok=True),
        )
    message = f"fixturegen: {Path(repo).name} {plan.new_content_hash[:12]}"

    def send() -> tuple[str, str]:
        info = api.create_commit(
            repo,
            _operations(plan, local),
            commit_message=message,
            revision=revision,
            parent_commit=parent,
            create_pr=create_pr,
        )
        return info.oid, (info.pr_url or info.commit_url if create_pr else info.commit_url)

    def landed() -> tuple[str, str] | None:
        """Where the commit is, if only its answer was lost."""
        if create_pr:
            for request in api.get_repo_discussions(repo, discussion_type="pull_request"):
                if request.title == message:
                    head, _ = _head(repo, f"refs/pr/{request.num}", api)
                    if head and _differing(local, _tree(repo, head, api)) is None:
                        return head, f"{api.endpoint}/{repo}/discussions/{request.num}"
            return None
        head, _ = _head(repo, revision, api)
        if head and head != parent and _differing(local, _tree(repo, head, api)) is None:
            return head, f"{api.endpoint}/{repo}/commit/{head}"
        return None

    return _retry(repo, send, already=landed)


def _operations(plan: PushPlan, local: Mapping[str, Path | bytes]) -> list[Any]:
    """New operation objects for each attempt: the client marks those it has used."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations: list[Any] = []
    for change in plan.changes:
        if change.new_size is None:
            operations.append(CommitOperationDelete(change.path))
        else:
            operations.append(CommitOperationAdd(change.path, local[change.path]))
    return operations


def _tag(repo: str, tag: str, commit: str, api: HfApi) -> None:
    existing = _retry(
        repo,
        lambda: {ref.name: ref.target_commit for ref in api.list_repo_refs(repo).tags},
    )
    if tag not in existing:
        _retry(repo, lambda: api.create_tag(repo, tag=tag, revision=commit, exist_ok=True))
    elif existing[tag] != commit:
        raise HubError(
            f"{repo} was pushed as {commit[:12]}, but its tag {tag} already names "
            f"{existing[tag][:12]}: choose another --tag"
        )


# -- verification of what the hub holds


def _differing(local: Mapping[str, Path | bytes], remote: Mapping[str, RepoFile]) -> str | None:
    """The first local file that the hub does not hold byte for byte."""
    for path, source in local.items():
        if path not in remote or not _is_same(source, remote[path]):
            return path
    return None


def _read_back(local: Mapping[str, Path | bytes], repo: str, commit: str, api: HfApi) -> None:
    """Compare the hub's hashes, the tensor headers and the manifest with what is here."""
    wrong = _differing(local, _tree(repo, commit, api))
    for path, source in local.items():
        if wrong is None and path.endswith(".safetensors"):
            assert isinstance(source, Path)
            remote = _retry(
                repo,
                lambda path=path: api.parse_safetensors_file_metadata(  # type: ignore[misc]
                    repo, path, revision=commit
                ),
            )
            served = {
                name: (tensor.dtype, list(tensor.shape), list(tensor.data_offsets))
                for name, tensor in remote.tensors.items()
            }
            if served != _header(source):
                wrong = path
    if wrong is None and _remote_bytes(repo, commit, MANIFEST, api) != _content(local[MANIFEST]):
        wrong = MANIFEST
    if wrong is not None:
        raise HubError(
            f"{repo}@{commit[:12]}: the hub serves other bytes for {wrong} than were sent: "
            "push again, and do not use that commit"
        )


def _header(path: Path) -> dict[str, tuple[str, list[int], list[int]]]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return {
        name: (tensor["dtype"], tensor["shape"], tensor["data_offsets"])
        for name, tensor in header.items()
    }


def _pull_manifest(repo: str, commit: str, partial: Path, api: HfApi) -> Manifest:
    from huggingface_hub.errors import EntryNotFoundError

    from fixturegen.manifest import Manifest

    def download() -> None:
        try:
            api.hf_hub_download(repo, MANIFEST, revision=commit, local_dir=partial)
        except EntryNotFoundError:
            raise HubError(f"{repo} has no {MANIFEST}: it was not made by fixturegen") from None

    _retry(repo, download)
    try:
        manifest = Manifest.load(partial)
    except FixturegenError as error:
        raise HubError(f"{repo}@{commit[:12]}: {error}") from None
    outside = [name for name in manifest.files if Path(name).name != name]
    if outside:
        raise HubError(f"{repo}: {MANIFEST} names {outside[0]!r}, which is not a plain file name")
    return manifest


def _check_hashes(folder: Path, manifest: Manifest, repo: str) -> None:
    from fixturegen.verification import verify

    for name, expected in manifest.files.items():
        if not (folder / name).is_file():
            raise HubError(f"{repo}: {name} is in the manifest but not in the repository")
        found = _sha256(folder / name)
        if found != expected:
            raise HubError(
                f"{repo}: {name} was tampered with or damaged (sha256 {found[:12]}, the manifest "
                f"says {expected[:12]}); nothing was kept"
            )
    problems = verify(folder)
    if problems:
        raise HubError(f"{repo}: {problems[0]}; nothing was kept")


def _holds(folder: Path, manifest: Manifest) -> bool:
    from fixturegen.verification import verify

    try:
        here = Manifest.load(folder)
    except FixturegenError:
        return False
    return here.content_hash == manifest.content_hash and not verify(folder)


# -- errors and retries


def _api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(library_name="fixturegen")


def _retry(repo: str, call: Callable[[], T], already: Callable[[], T | None] | None = None) -> T:
    """Call the hub; repeat what may pass, explain what will not.

    `already` is asked after a failure whether the call took effect all the same (an answer can be
    lost after the work is done); it returns the call's value or None.
    """
    from huggingface_hub import get_session

    wait = RETRY_WAIT
    for attempt in range(1, ATTEMPTS + 1):
        # The client's own default is to wait for ever; it may also be a new one after an error.
        get_session().timeout = SILENCE
        try:
            return call()
        except FixturegenError:
            raise
        except Exception as error:
            status, retry_after = _status(error)
            lost = status is None and _is_transport(error)
            if already is not None and (lost or status in (*TRANSIENT, 409, 412)):
                value = already()
                if value is not None:
                    return value
            if attempt == ATTEMPTS or not (lost or status in TRANSIENT):
                raise HubError(_explain(repo, error, status, retry_after)) from error
            time.sleep(retry_after if retry_after is not None else wait)
            wait *= 2
    raise AssertionError("unreachable")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _status(error: Exception) -> tuple[int | None, float | None]:
    """(HTTP status, seconds of Retry-After) behind an error of the client, if any."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if response is not None:
            retry_after = response.headers.get("Retry-After", "")
            return response.status_code, float(retry_after) if retry_after.isdigit() else None
    return None, None


def _is_transport(error: Exception) -> bool:
    """A request without an answer; by name, as the client is httpx or, in 2.x, httpx2."""
    return any(
        parent.__name__ == "TransportError"
        for cause in _causes(error)
        for parent in type(cause).__mro__
    )


def _explain(repo: str, error: Exception, status: int | None, retry_after: float | None) -> str:
    """One line: what the hub said, what state things are in, what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled, RevisionNotFoundError

    if any(isinstance(cause, OfflineModeIsEnabled) for cause in _causes(error)):
        return f"{repo}: HF_HUB_OFFLINE is set, so the hub is not asked; unset it"
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no such revision: check the branch, tag or commit after @"
    match status:
        case 401:
            return (
                f"{repo}: not signed in, or the token is not valid (401): "
                "run `hf auth login` or set HF_TOKEN"
            )
        case 403:
            return f"{repo}: the token may not do this (403): use one with write access to it"
        case 404:
            return (
                f"{repo}: no such repository (404): check the name; "
                "a private one needs `hf auth login`"
            )
        case 409 | 412:
            return (
                f"{repo} changed while the push was prepared ({status}); "
                "nothing was committed: run it again"
            )
        case 429:
            wait = f"wait {retry_after:.0f} s and " if retry_after else ""
            return f"{repo}: too many requests (429): {wait}run it again"
        case int():
            return f"{repo}: the hub answered {status}: run it again later"
    if _is_transport(error):
        return (
            f"{repo}: no answer from {constants.ENDPOINT} ({type(error).__name__}): check the "
            "network and HF_ENDPOINT, then run it again to resume"
        )
    return f"{repo}: {type(error).__name__}: {' '.join(str(error).split())}"
