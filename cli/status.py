"""``rerank status``: what a workspace holds."""

from __future__ import annotations

import click

from . import options, output


@click.command("status")
@options.common
def command(folder: str, as_json: bool) -> None:
    """Show a workspace's documents, rankers and stacks."""
    from rerank.stack import Stack
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    stored = workspace.engine.feature_versions()
    rankers = []
    for name in workspace.trained():
        ranker = workspace.ranker(name)
        rankers.append(
            {"name": name, "version": ranker.version, "features": stored.get(name) == ranker.version}
        )
    stacks = []
    for path in sorted((workspace.folder / "stacks").glob("*.json")):
        stack = Stack.load(path)
        stacks.append(
            {
                "stack": str(stack),
                "normalisation": stack.normalisation,
                "file": str(path),
                "stale": workspace.stale(stack),
            }
        )
    result = {
        "workspace": str(workspace.folder),
        "documents": len(workspace.engine),
        "lang": workspace.lang,
        "rankers": rankers,
        "stacks": stacks,
    }
    if as_json:
        output.print_json(result)
        return
    click.echo(f"{result['documents']} documents ({workspace.lang or 'no one language'}) in {folder}")
    for ranker_row in rankers:
        state = "features stored" if ranker_row["features"] else "features missing: run `rerank encode`"
        click.echo(f"ranker {ranker_row['name']} {ranker_row['version']}: {state}")
    for row in stacks:
        stale = (
            f" (tuned before {', '.join(row['stale'])} was trained again: tune it)" if row["stale"] else ""
        )
        click.echo(f"stack {row['stack']}, {row['normalisation']}{stale}")
