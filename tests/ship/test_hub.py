"""Push and pull through the real huggingface_hub client against a hub on loopback."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, ModelCard

from fixturegen import build, hub
from fixturegen.card import model_card
from fixturegen.checkpoint import Checkpoint
from fixturegen.errors import CheckpointError, HubError
from fixturegen.hub import add_to_collection, plan_push, pull, pull_recipe, push
from fixturegen.manifest import MANIFEST, Manifest
from fixturegen.recipe import Recipe
from fixturegen.verification import verify
from tests.ship.fakehub import READ_TOKEN, WRITE_TOKEN, Blob, FakeHub, Fault

REPO = "org/fixture"


def names(folder: Path) -> set[str]:
    return {*Manifest.load(folder).files, MANIFEST, "README.md"}


def assert_holds(fakehub: FakeHub, folder: Path, revision: str = "main") -> None:
    served = fakehub.files(REPO, revision)
    assert names(folder) == served.keys() - {".gitattributes"}
    for name in names(folder) - {"README.md"}:
        assert served[name] == (folder / name).read_bytes(), name


# -- push


def test_push_is_one_commit_of_everything(fakehub: FakeHub, api: HfApi, checkpoint: Path) -> None:
    result = push(checkpoint, REPO, api=api)
    assert result and result.was_pushed
    assert fakehub.count("POST /api/models/org/fixture/commit/") == 1
    assert fakehub.repos[REPO].heads["main"] == result.commit
    assert_holds(fakehub, checkpoint)


def test_push_twice_makes_no_commit(fakehub: FakeHub, api: HfApi, checkpoint: Path) -> None:
    first = push(checkpoint, REPO, api=api)
    asked: list[object] = []
    second = push(checkpoint, REPO, api=api, confirm=lambda plan: bool(asked.append(plan)))
    assert first and second and second.commit == first.commit and not second.was_pushed
    assert not asked
    assert fakehub.count("/commit/") == 1


def test_changed_push_shows_what_changes(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, other_checkpoint: Path
) -> None:
    push(checkpoint, REPO, api=api)
    plan = plan_push(other_checkpoint, REPO, api=api)
    kinds = {change.path: change.kind for change in plan.changes}
    assert kinds["config.json"] == "changed" and "tokenizer.json" not in kinds
    assert plan.config_changes == {"routed_scaling_factor": (2.5, 1.5)}
    assert plan.old_content_hash == Manifest.load(checkpoint).content_hash
    assert plan.new_content_hash == Manifest.load(other_checkpoint).content_hash
    assert push(other_checkpoint, REPO, api=api, confirm=lambda plan: False) is None
    assert_holds(fakehub, checkpoint)
    push(other_checkpoint, REPO, api=api)
    assert_holds(fakehub, other_checkpoint)


def test_stale_shards_go_in_the_same_commit(
    fakehub: FakeHub, api: HfApi, tiny_recipe: Recipe, tmp_path: Path, checkpoint: Path
) -> None:
    shards = build(tiny_recipe, tmp_path / "shards", check=False, max_shard_size=400_000).path
    assert len(list(shards.glob("*.safetensors"))) > 1
    push(shards, REPO, api=api)
    push(checkpoint, REPO, api=api)
    assert_holds(fakehub, checkpoint)
    assert fakehub.count("/commit/") == 2


def test_foreign_repository_is_refused(fakehub: FakeHub, api: HfApi, checkpoint: Path) -> None:
    repo = fakehub.create(REPO)
    repo.add_commit(
        "main", {"model.safetensors": Blob(b"theirs", True), "NOTES": Blob(b"n", False)}
    )
    with pytest.raises(HubError, match=r"not made by fixturegen.*--force"):
        push(checkpoint, REPO, api=api)
    assert fakehub.files(REPO)["model.safetensors"] == b"theirs"
    push(checkpoint, REPO, api=api, force=True)
    served = fakehub.files(REPO)
    assert "model.safetensors" not in served and served["NOTES"] == b"n"


def test_damaged_checkpoint_is_not_pushed(fakehub: FakeHub, api: HfApi, checkpoint: Path) -> None:
    shard = next(checkpoint.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match="not sound"):
        push(checkpoint, REPO, api=api)
    assert not fakehub.requests


def test_branch_tag_and_private(fakehub: FakeHub, api: HfApi, checkpoint: Path) -> None:
    result = push(checkpoint, REPO, api=api, revision="next", tag="v1", private=True)
    assert result
    repo = fakehub.repos[REPO]
    assert repo.private and repo.tags == {"v1": result.commit}
    assert_holds(fakehub, checkpoint, "next")
    assert fakehub.files(REPO).keys() == {".gitattributes"}


def test_tag_that_names_another_commit(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, other_checkpoint: Path
) -> None:
    push(checkpoint, REPO, api=api, tag="v1")
    push(checkpoint, REPO, api=api, tag="v1")
    with pytest.raises(HubError, match="tag v1 already names"):
        push(other_checkpoint, REPO, api=api, tag="v1")


def test_pull_request(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, other_checkpoint: Path
) -> None:
    with pytest.raises(HubError, match="does not exist"):
        push(checkpoint, REPO, api=api, create_pr=True)
    push(checkpoint, REPO, api=api)
    result = push(other_checkpoint, REPO, api=api, create_pr=True)
    assert result and result.url.endswith("/discussions/1")
    assert_holds(fakehub, checkpoint)
    assert_holds(fakehub, other_checkpoint, "refs/pr/1")


def test_public_repository_is_not_called_private(api: HfApi, checkpoint: Path) -> None:
    push(checkpoint, REPO, api=api)
    with pytest.raises(HubError, match="is public"):
        push(checkpoint, REPO, api=api, private=True)


def test_collection(fakehub: FakeHub, api: HfApi) -> None:
    for _ in range(2):
        add_to_collection(["org/a", "org/b"], api=api)
    (collection,) = fakehub.collections.values()
    assert [item["id"] for item in collection["items"]] == ["org/a", "org/b"]


def test_token_is_sent_but_never_shown(
    fakehub: FakeHub,
    api: HfApi,
    checkpoint: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fakehub.fail("PUT /lfs/", Fault(status=500))
    push(checkpoint, REPO, api=api)
    with pytest.raises(HubError) as error:
        push(checkpoint, "org/other", api=HfApi(endpoint=fakehub.endpoint, token=READ_TOKEN))
    out, err = capfd.readouterr()
    assert fakehub.tokens_seen == {WRITE_TOKEN, READ_TOKEN}
    shown = out + err + caplog.text + str(error.value)
    shown += "".join(f.read_text(errors="replace") for f in checkpoint.glob("*.json"))
    assert WRITE_TOKEN not in shown and READ_TOKEN not in shown


# -- faults


LASTING = [
    ("/commit/", Fault(status=401), "hf auth login"),
    ("/commit/", Fault(status=403), "write access"),
    ("/preupload/", Fault(status=404), "no such repository"),
    ("/commit/", Fault(status=409), "nothing was committed: run it again"),
    ("/commit/", Fault(status=412), "nothing was committed: run it again"),
    ("/commit/", Fault(status=429, headers=(("Retry-After", "0"),)), "too many requests"),
    ("/commit/", Fault(status=500), "the hub answered 500"),
    ("/commit/", Fault(drop=True), "no answer from"),
]


@pytest.mark.parametrize(("request_", "fault", "message"), LASTING)
def test_lasting_fault_leaves_all_as_it_was(
    fakehub: FakeHub,
    api: HfApi,
    checkpoint: Path,
    other_checkpoint: Path,
    request_: str,
    fault: Fault,
    message: str,
) -> None:
    push(checkpoint, REPO, api=api)
    fakehub.fail(request_, fault, times=hub.ATTEMPTS)
    with pytest.raises(HubError, match=message):
        push(other_checkpoint, REPO, api=api)
    assert_holds(fakehub, checkpoint)
    fakehub._queued.clear()
    push(other_checkpoint, REPO, api=api)
    assert_holds(fakehub, other_checkpoint)


PASSING = [
    ("/commit/", Fault(status=429, headers=(("Retry-After", "0"),))),
    ("/commit/", Fault(status=500)),
    ("/commit/", Fault(drop=True)),
    ("/commit/", Fault(drop_after=True)),
    ("POST /api/repos/create", Fault(status=500)),
    ("/tree/", Fault(drop=True)),
    ("PUT /lfs/", Fault(drop=True)),
    ("PUT /lfs/", Fault(drop_after=True)),
    ("PUT /lfs/", Fault(delay=1.0)),
    ("/preupload/", Fault(status=500)),
]


@pytest.mark.parametrize(("request_", "fault"), PASSING)
def test_passing_fault_is_survived(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, request_: str, fault: Fault
) -> None:
    fakehub.fail(request_, fault)
    push(checkpoint, REPO, api=api)
    assert_holds(fakehub, checkpoint)
    assert len(fakehub.repos[REPO].commits) == 2, "more than one commit"


def test_pull_request_whose_answer_was_lost_is_not_opened_twice(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, other_checkpoint: Path
) -> None:
    push(checkpoint, REPO, api=api)
    fakehub.fail("/commit/", Fault(drop_after=True))
    result = push(other_checkpoint, REPO, api=api, create_pr=True)
    assert result and result.url.endswith("/discussions/1")
    assert len(fakehub.repos[REPO].pulls) == 1


def test_retry_after_is_respected(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(hub, "time", SimpleNamespace(sleep=waits.append))
    fakehub.fail("/commit/", Fault(status=429, headers=(("Retry-After", "7"),)))
    push(checkpoint, REPO, api=api)
    assert waits == [7.0]


def test_silent_hub_is_given_up(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SILENCE", 0.2)
    monkeypatch.setattr(hub, "ATTEMPTS", 2)
    fakehub.fail("/commit/", Fault(delay=1.5), times=2)
    with pytest.raises(HubError, match=r"no answer from .*Timeout"):
        push(checkpoint, REPO, api=api)


def test_moved_parent_is_not_overwritten(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, other_checkpoint: Path
) -> None:
    push(checkpoint, REPO, api=api)

    def somebody_else(fakehub: FakeHub) -> None:
        repo = fakehub.repos[REPO]
        files = dict(repo.commits[repo.heads["main"]])
        repo.add_commit("main", {**files, "NOTES": Blob(b"theirs", False)})

    fakehub.fail("/commit/", Fault(before=somebody_else))
    with pytest.raises(HubError, match="changed while the push was prepared"):
        push(other_checkpoint, REPO, api=api)
    assert fakehub.files(REPO)["NOTES"] == b"theirs"
    assert fakehub.files(REPO)["config.json"] == (checkpoint / "config.json").read_bytes()


def test_bytes_damaged_on_the_way_are_not_committed(
    fakehub: FakeHub, api: HfApi, checkpoint: Path
) -> None:
    fakehub.fail("PUT /lfs/", Fault(corrupt=True))
    with pytest.raises(HubError, match="400"):
        push(checkpoint, REPO, api=api)
    assert fakehub.files(REPO).keys() == {".gitattributes"}


class Lying(Blob):
    """A file for which the hub states the hash of another."""

    sha256 = "set by the test"


def test_hub_that_serves_other_bytes_is_found_out(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(checkpoint, REPO, api=api)
    repo = fakehub.repos[REPO]
    files = repo.commits[repo.heads["main"]]
    shard = next(name for name in files if name.endswith(".safetensors"))
    monkeypatch.setattr(Lying, "sha256", files[shard].sha256)
    files[shard] = Lying(files[shard].data.replace(b'"BF16"', b'"FP16"', 1), True)
    with pytest.raises(HubError, match=rf"serves other bytes for {shard}"):
        push(checkpoint, REPO, api=api)


def test_resume_sends_only_what_is_missing(fakehub: FakeHub, api: HfApi, checkpoint: Path) -> None:
    fakehub.fail("/commit/", Fault(drop=True), times=hub.ATTEMPTS)
    with pytest.raises(HubError, match="to resume"):
        push(checkpoint, REPO, api=api)
    sent = fakehub.count("PUT /lfs/")
    push(checkpoint, REPO, api=api)
    assert fakehub.count("PUT /lfs/") == sent
    assert_holds(fakehub, checkpoint)


def test_connection_lost_after_the_commit(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message does not claim that nothing happened; the second run only reads back."""
    fakehub.fail("HEAD /org/fixture/resolve/", Fault(drop=True), times=100)
    with pytest.raises(HubError, match="run it again") as error:
        push(checkpoint, REPO, api=api)
    assert "nothing was" not in str(error.value)
    assert_holds(fakehub, checkpoint)
    fakehub._queued.clear()
    again = push(checkpoint, REPO, api=api)
    assert again and not again.was_pushed and fakehub.count("/commit/") == 1


def test_no_hub_at_all(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RETRY_WAIT", 0.01)
    with pytest.raises(HubError, match="check the network and HF_ENDPOINT"):
        push(checkpoint, REPO, api=HfApi(endpoint="http://127.0.0.1:9", token=WRITE_TOKEN))


@pytest.mark.slow
def test_100_pushes_under_random_faults_end_whole_or_unchanged(
    fakehub: FakeHub, checkpoint: Path, other_checkpoint: Path, api: HfApi
) -> None:
    """Every request may meet a fault; afterwards each repository holds the old files or the new."""
    choose = random.Random(20260501)
    lock = threading.Lock()
    menu = [
        *[Fault(status=code) for code in (401, 403, 409, 412, 500, 503)],
        Fault(status=429, headers=(("Retry-After", "0"),)),
        *[Fault(drop=True), Fault(drop_after=True)] * 3,
        *[Fault(delay=0.2), Fault(corrupt=True)],
    ]
    repos = [f"org/fixture-{i}" for i in range(100)]
    for repo in repos[::2]:
        push(checkpoint, repo, api=api)
    before = {repo: dict(fakehub.repos[repo].heads) for repo in repos if repo in fakehub.repos}

    def fault_for(request: str) -> Fault | None:
        with lock:
            return choose.choice(menu) if choose.random() < 0.1 else None

    fakehub.fault_for = fault_for

    def attempt(repo: str) -> str:
        try:
            push(other_checkpoint, repo, api=api)
            return "pushed"
        except HubError as error:
            return str(error)

    with ThreadPoolExecutor(50) as pool:
        ends = dict(zip(repos, pool.map(attempt, repos), strict=True))
    fakehub.fault_for = None
    whole = 0
    for repo, end in ends.items():
        served = fakehub.files(repo) if repo in fakehub.repos else {".gitattributes": b""}
        is_new = all(
            served.get(name) == (other_checkpoint / name).read_bytes()
            for name in names(other_checkpoint) - {"README.md"}
        )
        unchanged = (
            fakehub.repos[repo].heads == before[repo]
            if repo in before
            else served.keys() == {".gitattributes"}
        )
        assert is_new or unchanged, f"{repo} is half changed after: {end}"
        assert is_new or end != "pushed", f"{repo} said pushed and is not"
        whole += is_new
    assert 20 <= whole < 100, f"the faults did not bite, or nothing got through: {whole}"
    for repo in [repo for repo, end in ends.items() if end != "pushed"][:20]:
        push(other_checkpoint, repo, api=api)  # nothing is lost: without faults the job ends
        assert fakehub.files(repo)[MANIFEST] == (other_checkpoint / MANIFEST).read_bytes()


# -- pull


def test_pull_gives_the_same_checkpoint(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, tmp_path: Path
) -> None:
    push(checkpoint, REPO, api=api, tag="v1")
    out = pull(REPO, tmp_path / "out", revision="v1", api=api)
    assert verify(out, regenerate=True) == []
    assert Manifest.load(out) == Manifest.load(checkpoint)
    downloads = fakehub.count("GET /org/fixture/resolve")
    pull(REPO, out, api=api)
    assert fakehub.count("GET /org/fixture/resolve") == downloads + 1, "only the manifest again"
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".out")) == [".out.lock"]


def test_tampered_file_is_refused(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, tmp_path: Path
) -> None:
    push(checkpoint, REPO, api=api)
    repo = fakehub.repos[REPO]
    files = dict(repo.commits[repo.heads["main"]])
    shard = next(name for name in files if name.endswith(".safetensors"))
    data = files[shard].data
    repo.add_commit("main", {**files, shard: Blob(data[:-1] + bytes([data[-1] ^ 1]), True)})
    with pytest.raises(HubError, match=rf"{shard} was tampered with.*nothing was kept"):
        pull(REPO, tmp_path / "out", api=api)
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.partial").exists()


def test_file_missing_from_the_repository(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, tmp_path: Path
) -> None:
    push(checkpoint, REPO, api=api)
    repo = fakehub.repos[REPO]
    files = dict(repo.commits[repo.heads["main"]])
    del files["tokenizer.json"]
    repo.add_commit("main", files)
    with pytest.raises(HubError, match=r"tokenizer\.json is in the manifest but not"):
        pull(REPO, tmp_path / "out", api=api)


def test_manifest_that_names_a_path_outside(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, tmp_path: Path
) -> None:
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["files"]["../evil"] = "0" * 64
    fakehub.create(REPO).add_commit("main", {MANIFEST: Blob(json.dumps(manifest).encode(), False)})
    with pytest.raises(HubError, match="not a plain file name"):
        pull(REPO, tmp_path / "out", api=api)


def test_pull_refuses_what_is_not_there_or_not_ours(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, other_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(HubError, match="no such repository"):
        pull(REPO, tmp_path / "out", api=api)
    fakehub.create(REPO)
    with pytest.raises(HubError, match=f"no {MANIFEST}"):
        pull(REPO, tmp_path / "out", api=api)
    push(checkpoint, REPO, api=api)
    with pytest.raises(HubError, match="no such revision"):
        pull(REPO, tmp_path / "out", revision="v9", api=api)
    with pytest.raises(HubError, match="holds something else"):
        pull(REPO, other_checkpoint, api=api)


def test_dropped_download_goes_on(
    fakehub: FakeHub, api: HfApi, checkpoint: Path, tmp_path: Path
) -> None:
    push(checkpoint, REPO, api=api)
    fakehub.fail("GET /org/fixture/resolve", Fault(drop_after=True), times=2)
    fakehub.fail("/tree/", Fault(status=500))
    assert verify(pull(REPO, tmp_path / "out", api=api)) == []


def test_pull_recipe_takes_only_that_recipe(
    fakehub: FakeHub,
    api: HfApi,
    tiny_recipe: Recipe,
    checkpoint: Path,
    other_checkpoint: Path,
    tmp_path: Path,
) -> None:
    push(other_checkpoint, "org/other", api=api)
    with pytest.raises(HubError, match=r"is in none of org/other"):
        pull_recipe(tiny_recipe, tmp_path / "out", ["org/other"], api=api)
    push(checkpoint, REPO, api=api)
    pull_recipe(tiny_recipe, tmp_path / "out", ["org/other", REPO], api=api)
    assert Manifest.load(tmp_path / "out") == Manifest.load(checkpoint)


def test_pull_recipe_finds_the_draft_beside_its_target(
    fakehub: FakeHub, api: HfApi, tiny_pair_recipe: Recipe, tmp_path: Path
) -> None:
    pair = build(tiny_pair_recipe, tmp_path / "pair", check=False).path
    push(pair / "target", "org/pair", api=api, tag="v1")
    with pytest.raises(HubError, match=r"\(draft\), as resolved here, is in none of org/pair@v1"):
        pull_recipe(tiny_pair_recipe, tmp_path / "early", ["org/pair@v1"], api=api)
    push(pair / "draft", "org/pair-draft", api=api, tag="v1")
    pull_recipe(tiny_pair_recipe, tmp_path / "out", ["org/pair@v1"], api=api)
    for part in ("target", "draft"):
        assert Manifest.load(tmp_path / "out" / part) == Manifest.load(pair / part)


# -- card


def test_card_is_valid_and_says_what_the_checkpoint_is(checkpoint: Path, api: HfApi) -> None:
    text = model_card(checkpoint, repo=REPO)
    card = ModelCard(text, ignore_metadata_errors=False)
    assert card.data.license == "apache-2.0" and "random-weights" in card.data.tags
    manifest = Manifest.load(checkpoint)
    for needle in (
        manifest.content_hash,
        f"Seed {manifest.recipe['seed']}",
        "not a language model",
        f'LLM("{REPO}"',
        "`qk_nope_head_dim` | `128`",
        "fixturegen_checkpoint",
        "| all |",
    ):
        assert needle in text, needle
    assert model_card(checkpoint, repo=REPO) == text


def test_card_of_planted_weights_has_margin_and_acceptance(
    fixturegen_checkpoint: Callable[..., Checkpoint],
) -> None:
    planted = fixturegen_checkpoint("deepseek-v3-mtp")
    text = model_card(planted.path, repo=REPO)
    card = ModelCard(text, ignore_metadata_errors=False)
    assert card.data.tags and "planted-weights" in card.data.tags
    assert f"at least {planted.expected['guaranteed_margin']:.3g} logits" in text
    for tokens, counts in planted.expected["speculation"].items():
        row = [tokens, counts["drafts"], counts["draft_tokens"], counts["accepted_tokens"]]
        assert f"| {' | '.join(map(str, row))} |" in text
    for target in planted.recipe.targets:
        assert f"| `{target}` | accepted |" in text or f"| `{target}` | falls back |" in text
