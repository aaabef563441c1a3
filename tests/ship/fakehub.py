"""A small model hub on loopback, for tests of the real huggingface_hub client.

It speaks the part of the Hub's HTTP protocol that `fixturegen push` and `pull` cause the client to
use: create a repository, preupload, LFS batch and upload, commit (also as a pull request), branch,
tag, refs, tree, resolve with ranges, discussions, collections. State lives in memory. A commit is
applied under one lock, after everything it names has been found, so that it lands whole or not at
all, as on the real hub.

Faults are served on request: `hub.fail("PUT /lfs/", Fault(status=500), times=2)`, or by a function
that looks at each request (`hub.fault_for`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

WRITE_TOKEN = "hf_fakewritetokenforloopbacktests0001"
READ_TOKEN = "hf_fakereadtokenforloopbacktests00002"
LFS_SUFFIXES = (".safetensors", "tokenizer.json")


@dataclass(frozen=True)
class Blob:
    data: bytes
    lfs: bool

    @property
    def git_oid(self) -> str:
        data = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        return (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\n"
            f"size {len(self.data)}\n"
        ).encode()

    def as_tree_item(self, path: str) -> dict[str, Any]:
        item = {"type": "file", "path": path, "size": len(self.data), "oid": self.git_oid}
        if self.lfs:
            lfs = {"oid": self.sha256, "size": len(self.data), "pointerSize": len(self.pointer)}
            item["lfs"] = lfs
        return item


Files = dict[str, Blob]


@dataclass
class Repo:
    private: bool
    commits: dict[str, Files] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)  # branch or refs/pr/N -> commit
    tags: dict[str, str] = field(default_factory=dict)
    pulls: list[str] = field(default_factory=list)  # titles; pull request N is pulls[N - 1]

    def resolve(self, revision: str) -> str | None:
        """The commit that a branch, tag, pull-request ref or commit id names."""
        if revision in self.commits:
            return revision
        return self.heads.get(revision) or self.tags.get(revision)

    def add_commit(self, ref: str, files: Files) -> str:
        sha = hashlib.sha1(f"{ref} {len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits[sha] = files
        self.heads[ref] = sha
        return sha


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of (or before, or after) its normal answer."""

    status: int | None = None  # answer with this status
    headers: tuple[tuple[str, str], ...] = ()
    drop: bool = False  # close the connection half way through the request's body
    drop_after: bool = False  # do the work, then close without an answer
    delay: float = 0.0  # seconds of silence before the answer
    corrupt: bool = False  # flip one bit of the bytes stored (upload) or served (download)
    before: Callable[[FakeHub], None] | None = None  # e.g. let somebody else commit first


class FakeHub:
    """`with FakeHub() as hub: ...`; `hub.endpoint` goes to HF_ENDPOINT or HfApi(endpoint=)."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.collections: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.tokens_seen: set[str] = set()
        self.fault_for: Callable[[str], Fault | None] | None = None
        self.lock = threading.RLock()
        self._queued: list[tuple[str, Fault]] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, request: str, fault: Fault, times: int = 1) -> None:
        """The next `times` requests whose "METHOD /path" contains `request` meet `fault`."""
        self._queued += [(request, fault)] * times

    def next_fault(self, request: str) -> Fault:
        with self.lock:
            self.requests.append(request)
            for i, (pattern, fault) in enumerate(self._queued):
                if pattern in request:
                    del self._queued[i]
                    return fault
        return (self.fault_for and self.fault_for(request)) or Fault()

    def create(self, repo_id: str, private: bool = False) -> Repo:
        repo = self.repos[repo_id] = Repo(private)
        repo.add_commit("main", {".gitattributes": Blob(b"*.safetensors filter=lfs\n", False)})
        return repo

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        repo = self.repos[repo_id]
        sha = repo.resolve(revision)
        assert sha is not None, f"{repo_id} has no revision {revision}"
        return {path: blob.data for path, blob in repo.commits[sha].items()}

    def count(self, request: str) -> int:
        return sum(request in seen for seen in self.requests)


class _Reply(Exception):
    """Ends a request with this answer."""

    def __init__(self, status: int, body: Any = None, **headers: str):
        self.status, self.body = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def _missing(what: str) -> _Reply:
    return _Reply(404, {"error": f"{what} not found"}, X_Error_Code=f"{what}NotFound")


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    ROUTES = (
        ("GET", r"/api/whoami-v2", "whoami"),
        ("POST", r"/api/repos/create", "create_repo"),
        ("POST", r"/api/validate-yaml", "validate_yaml"),
        ("POST", r"/api/collections", "create_collection"),
        ("GET", r"/api/collections/(?P<slug>.+)", "get_collection"),
        ("POST", r"/api/collections/(?P<slug>.+)/items", "add_to_collection"),
        ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)", "info"),
        ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<rev>.+)", "info"),
        ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<rev>[^/]+)", "tree"),
        ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/refs", "refs"),
        ("GET", r"/api/models/(?P<repo>[^/]+/[^/]+)/discussions", "discussions"),
        ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/(?P<rev>[^/]+)", "preupload"),
        ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/(?P<rev>[^/]+)", "commit"),
        ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/branch/(?P<rev>[^/]+)", "create_branch"),
        ("POST", r"/api/models/(?P<repo>[^/]+/[^/]+)/tag/(?P<rev>[^/]+)", "create_tag"),
        ("POST", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "lfs_batch"),
        ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "lfs_put"),
        ("POST", r"/lfs/(?P<oid>[0-9a-f]{64})/verify", "lfs_verify"),
        ("GET|HEAD", r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)", "resolve"),
    )

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def log_message(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        fault = self.fault = self.hub.next_fault(f"{self.command} {unquote(url.path)}")
        length = int(self.headers.get("Content-Length", 0))
        if fault.drop:
            self.rfile.read(length // 2)
            return self._hang_up()
        self.body = self.rfile.read(length)
        if fault.delay:
            time.sleep(fault.delay)
        try:
            if fault.before:
                fault.before(self.hub)
            if fault.status:
                headers = {name.replace("-", "_"): value for name, value in fault.headers}
                raise _Reply(fault.status, {"error": f"injected {fault.status}"}, **headers)
            for method, pattern, name in self.ROUTES:
                match = re.fullmatch(pattern, url.path)
                if match and self.command in method.split("|"):
                    arguments = {key: unquote(value) for key, value in match.groupdict().items()}
                    getattr(self, name)(**arguments)
            raise _Reply(404, {"error": f"no route for {self.command} {url.path}"})
        except _Reply as reply:
            if fault.drop_after:
                return self._hang_up()
            self._send(reply)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _send(self, reply: _Reply) -> None:
        raw = isinstance(reply.body, bytes)
        body = reply.body if raw else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in reply.headers:
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/octet-stream" if raw else "text/json")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # -- who asks, and for what

    def _token(self) -> str | None:
        header = self.headers.get("authorization")
        if header:
            self.hub.tokens_seen.add(header.removeprefix("Bearer "))
        return header.removeprefix("Bearer ") if header else None

    def _may_write(self) -> None:
        token = self._token()
        if token is None:
            raise _Reply(401, {"error": "no token"})
        if token != WRITE_TOKEN:
            raise _Reply(403, {"error": "read-only token"}, X_Error_Message="token may not write")

    def _repo(self, repo_id: str) -> Repo:
        repo = self.hub.repos.get(repo_id)
        if repo is None or (repo.private and self._token() is None):
            raise _missing("Repo")
        self._token()
        return repo

    def _commit_id(self, repo: Repo, revision: str) -> str:
        sha = repo.resolve(revision)
        if sha is None:
            raise _missing("Revision")
        return sha

    # -- routes; each ends by raising its answer

    def whoami(self) -> None:
        if self._token() is None:
            raise _Reply(401, {"error": "no token"})
        raise _Reply(200, {"name": "tester", "type": "user", "orgs": [{"name": "org"}]})

    def validate_yaml(self) -> None:
        raise _Reply(200, {"errors": [], "warnings": []})

    def create_repo(self) -> None:
        self._may_write()
        asked = json.loads(self.body)
        repo_id = f"{asked['organization'] or 'tester'}/{asked['name']}"
        with self.hub.lock:
            exists = repo_id in self.hub.repos
            if not exists:
                private = asked.get("private", asked.get("visibility") == "private")
                self.hub.create(repo_id, bool(private))
        url = f"{self.hub.endpoint}/{repo_id}"
        raise _Reply(409 if exists else 200, {"url": url, "name": repo_id, "id": repo_id})

    def info(self, repo: str, rev: str = "main") -> None:
        found = self._repo(repo)
        sha = self._commit_id(found, rev)
        siblings = [{"rfilename": path} for path in found.commits[sha]]
        body = {"id": repo, "sha": sha, "private": found.private, "siblings": siblings, "tags": []}
        raise _Reply(200, body)

    def tree(self, repo: str, rev: str) -> None:
        found = self._repo(repo)
        files = found.commits[self._commit_id(found, rev)]
        raise _Reply(200, [blob.as_tree_item(path) for path, blob in sorted(files.items())])

    def refs(self, repo: str) -> None:
        found = self._repo(repo)

        def listing(refs: dict[str, str], prefix: str) -> list[dict[str, str]]:
            return [
                {"name": name, "ref": prefix + name, "targetCommit": sha}
                for name, sha in refs.items()
            ]

        pulls = {name: sha for name, sha in found.heads.items() if name.startswith("refs/pr/")}
        branches = {name: sha for name, sha in found.heads.items() if name not in pulls}
        body = {
            "branches": listing(branches, "refs/heads/"),
            "tags": listing(found.tags, "refs/tags/"),
            "converts": [],
            "pullRequests": listing(pulls, ""),
        }
        raise _Reply(200, body)

    def discussions(self, repo: str) -> None:
        found = self._repo(repo)
        discussions = [
            {
                "num": number,
                "title": title,
                "status": "open",
                "isPullRequest": True,
                "author": {"name": "tester"},
                "createdAt": "2026-01-01T00:00:00.000Z",
                "repo": {"name": repo, "type": "model"},
            }
            for number, title in enumerate(found.pulls, 1)
        ]
        body = {"discussions": discussions, "count": len(discussions), "start": 0}
        raise _Reply(200, body)

    def preupload(self, repo: str, rev: str) -> None:
        self._may_write()
        found = self._repo(repo)
        files = found.commits[self._commit_id(found, rev)]
        answer = []
        for asked in json.loads(self.body)["files"]:
            path = asked["path"]
            lfs = path.endswith(LFS_SUFFIXES) or asked["size"] > 10_000_000
            item = {"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
            if path in files:
                item["oid"] = files[path].sha256 if files[path].lfs else files[path].git_oid
            answer.append(item)
        raise _Reply(200, {"files": answer})

    def lfs_batch(self, repo: str) -> None:
        self._may_write()
        self._repo(repo)
        objects = []
        for asked in json.loads(self.body)["objects"]:
            item = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.hub.lfs:
                href = f"{self.hub.endpoint}/lfs/{asked['oid']}"
                item["actions"] = {
                    "upload": {"href": href, "header": {}},
                    "verify": {"href": f"{href}/verify", "header": {}},
                }
            objects.append(item)
        raise _Reply(200, {"transfer": "basic", "objects": objects})

    def lfs_put(self, oid: str) -> None:
        data = self._flip(self.body)
        if hashlib.sha256(data).hexdigest() != oid:
            raise _Reply(400, {"error": "the bytes received do not have the announced sha256"})
        self.hub.lfs[oid] = data
        raise _Reply(200, {})

    def lfs_verify(self, oid: str) -> None:
        raise _Reply(200 if oid in self.hub.lfs else 404, {})

    def commit(self, repo: str, rev: str) -> None:
        self._may_write()
        found = self._repo(repo)
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        with self.hub.lock:
            head = self._commit_id(found, rev)
            if header.get("parentCommit", head) != head:
                raise _Reply(412, {"error": "parent commit is not the head of the branch"})
            files = dict(found.commits[head])
            for line in lines[1:]:
                value = line["value"]
                match line["key"]:
                    case "file":
                        files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
                    case "lfsFile":
                        if value["oid"] not in self.hub.lfs:
                            raise _Reply(400, {"error": f"{value['path']}: not uploaded"})
                        files[value["path"]] = Blob(self.hub.lfs[value["oid"]], True)
                    case "deletedFile":
                        if files.pop(value["path"], None) is None:
                            raise _missing("Entry")
            body = {"success": True}
            ref = rev
            if "create_pr" in self.query:
                found.pulls.append(header["summary"])
                ref = f"refs/pr/{len(found.pulls)}"
                url = f"{self.hub.endpoint}/{repo}/discussions/{len(found.pulls)}"
                body["pullRequestUrl"] = url
            sha = found.add_commit(ref, files)
        url = f"{self.hub.endpoint}/{repo}/commit/{sha}"
        raise _Reply(200, {**body, "commitOid": sha, "commitUrl": url})

    def create_branch(self, repo: str, rev: str) -> None:
        self._may_write()
        found = self._repo(repo)
        if rev in found.heads:
            raise _Reply(409, {"error": "branch exists"})
        found.heads[rev] = found.heads["main"]
        raise _Reply(200, {})

    def create_tag(self, repo: str, rev: str) -> None:
        self._may_write()
        found = self._repo(repo)
        tag = json.loads(self.body)["tag"]
        if tag in found.tags:
            raise _Reply(409, {"error": "tag exists"})
        found.tags[tag] = self._commit_id(found, rev)
        raise _Reply(200, {})

    def create_collection(self) -> None:
        self._may_write()
        asked = json.loads(self.body)
        slug = f"{asked['namespace']}/{asked['title'].replace(' ', '-')}-000000000000000000000000"
        exists = slug in self.hub.collections
        if not exists:
            self.hub.collections[slug] = {
                "slug": slug,
                "title": asked["title"],
                "owner": {"name": asked["namespace"]},
                "items": [],
                "lastUpdated": "2026-01-01T00:00:00.000Z",
                "position": 0,
                "private": False,
                "theme": "blue",
                "upvotes": 0,
                "description": asked.get("description"),
            }
        raise _Reply(409 if exists else 200, self.hub.collections[slug])

    def get_collection(self, slug: str) -> None:
        raise _Reply(200, self.hub.collections[slug])

    def add_to_collection(self, slug: str) -> None:
        self._may_write()
        item = json.loads(self.body)["item"]
        items = self.hub.collections[slug]["items"]
        exists = any(item["id"] == other["id"] for other in items)
        if not exists:
            items.append(
                {"_id": str(len(items)), "position": len(items), "repoType": "model", **item}
            )
        raise _Reply(409 if exists else 200, self.hub.collections[slug])

    def resolve(self, repo: str, rev: str, path: str) -> None:
        found = self._repo(repo)
        sha = self._commit_id(found, rev)
        blob = found.commits[sha].get(path)
        if blob is None:
            raise _missing("Entry")
        data = self._flip(blob.data)
        etag = blob.sha256 if blob.lfs else blob.git_oid
        headers = {"ETag": f'"{etag}"', "X_Repo_Commit": sha, "Accept_Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            start, end = int(wanted[1]), int(wanted[2] or len(data) - 1)
            total = len(data)
            data = data[start : end + 1]
            headers["Content_Range"] = f"bytes {start}-{start + len(data) - 1}/{total}"
        headers["Content_Length"] = str(len(data))
        raise _Reply(206 if wanted else 200, data, **headers)

    def _flip(self, data: bytes) -> bytes:
        if not self.fault.corrupt or not data:
            return data
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
