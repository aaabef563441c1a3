"""``fixturegen push``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fixturegen.cli.tables import table
from fixturegen.units import human

if TYPE_CHECKING:
    from fixturegen.hub import PushPlan


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option(
    "--repo",
    required=True,
    metavar="ORG/NAME",
    help="Where to; with ORG/ alone, or several paths, the name is the recipe's.",
)
@click.option("--private", is_flag=True, help="Create the repository private.")
@click.option("--revision", default="main", show_default=True, help="Branch, made if needed.")
@click.option("--create-pr", is_flag=True, help="Open a pull request instead of committing.")
@click.option("--tag", help="Tag the commit.")
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
@click.option("--collection", is_flag=True, help="Put it into ORG's collection of fixtures.")
@click.option("--yes", is_flag=True, help="Do not ask before changing what is there.")
@click.option("--force", is_flag=True, help="Replace a repository that fixturegen did not make.")
def command(
    paths: tuple[str, ...],
    repo: str,
    private: bool,
    revision: str,
    create_pr: bool,
    tag: str | None,
    dry_run: bool,
    collection: bool,
    yes: bool,
    force: bool,
) -> None:
    """Upload checkpoints to the Hugging Face hub, each in one commit.

    The target and draft of an Eagle pair go to ORG/NAME and ORG/NAME-draft.
    """
    from fixturegen import hub

    progress_on_a_terminal_only()
    jobs = [job for path in paths for job in _jobs(Path(path), repo, len(paths))]
    for folder, to, partner in jobs:
        if dry_run:
            plan = hub.plan_push(
                folder, to, revision=revision, create_pr=create_pr, force=force, partner=partner
            )
            click.echo(_describe(plan))
            continue
        result = hub.push(
            folder,
            to,
            revision=revision,
            private=private,
            create_pr=create_pr,
            tag=tag,
            force=force,
            partner=partner,
            confirm=lambda plan: _confirm(plan, yes),
        )
        if result is None:
            click.echo(f"{to}: left as it is", err=True)
            sys.exit(1)
        done = "pushed and read back" if result.was_pushed else "already holds these bytes"
        click.echo(f"{to}: {done}: {result.url}")
    if collection and not dry_run:
        click.echo(hub.add_to_collection([to for _, to, _ in jobs]))


def _jobs(path: Path, repo: str, paths: int) -> list[tuple[Path, str, str | None]]:
    """(folder, repository, partner's repository) of each checkpoint at ``path``; the draft of a
    pair first, so that whoever sees the target finds it."""
    from fixturegen.inspection import checkpoint_folders
    from fixturegen.manifest import Manifest

    folders = checkpoint_folders(path)
    org, slash, name = repo.partition("/")
    if not name and slash:
        name = str(Manifest.load(folders[0]).recipe["name"])
    elif paths > 1 or not slash or not org or "/" in name:
        raise click.BadParameter(
            f"{repo!r}; expected ORG/NAME, or ORG/ for several paths", param_hint="--repo"
        )
    target, draft = f"{org}/{name}", f"{org}/{name}-draft"
    if len(folders) == 1:
        return [(folders[0], target, None)]
    return [(folders[1], draft, target), (folders[0], target, draft)]


def _confirm(plan: PushPlan, yes: bool) -> bool:
    click.echo(_describe(plan))
    if yes or plan.old_content_hash is None:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(f"{plan.repo} would change; pass --yes to let it")
    return click.confirm(f"Change {plan.repo}?")


def _describe(plan: PushPlan) -> str:
    place = plan.repo if plan.revision == "main" else f"{plan.repo}@{plan.revision}"
    if not plan.changes:
        return f"{place}: no change ({plan.new_content_hash[:16]})"
    state = "new repository" if plan.parent is None else f"on {plan.parent[:12]}"
    rows = [
        (f"  {change.kind}", change.path, _size(change.old_size), "->", _size(change.new_size))
        for change in plan.changes
    ]
    lines = [f"{place} ({state})", table(rows, right=(2, 4))]
    old = plan.old_content_hash[:16] if plan.old_content_hash else "none"
    lines.append(f"  content hash {old} -> {plan.new_content_hash[:16]}")
    if plan.old_content_hash:
        for key, (before, after) in plan.config_changes.items():
            lines.append(f"  config {key}: {json.dumps(before)} -> {json.dumps(after)}")
    return "\n".join(lines)


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else human(nbytes, "B")


def progress_on_a_terminal_only() -> None:
    """Turn huggingface_hub's bars off in logs."""
    if not sys.stderr.isatty():
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
