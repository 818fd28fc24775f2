"""``rerank status``: what a workspace holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rerank.wording import amount

from . import options, output

if TYPE_CHECKING:
    from rerank.stack.stack import Stack
    from rerank.workspace import Workspace


@click.command("status")
@options.common
def command(folder: str, as_json: bool) -> None:
    """Show a workspace's documents, rankers and stacks."""
    from rerank.errors import WorkspaceError
    from rerank.stack.stack import Stack
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    rankers: list[dict[str, Any]] = []
    for name in workspace.trained():
        unknown: dict[str, Any] = {"version": None, "features": False, "missing_features": None}
        rankers.append({"name": name, **unknown, "error": None})
        try:
            version = workspace.ranker(name).version
        except WorkspaceError as error:
            rankers[-1]["error"] = str(error)
            continue
        missing = workspace.engine.missing_features(name, version)
        rankers[-1].update(version=version, features=not missing, missing_features=missing)
    stacks: list[dict[str, Any]] = []
    serving = workspace.serving
    default = workspace.default_stack
    for name, versions in workspace.needed().items():
        for row in rankers:
            if row["name"] == name and row["version"] is not None:
                row["older"] = [version for version in versions if version != row["version"]]
    for path in sorted((workspace.folder / "stacks").glob("*.json")):
        stack = Stack.load(path)
        stacks.append(
            {
                "stack": str(stack),
                "normalisation": stack.normalisation,
                "retrieve": list(stack.retrievers),
                "depth": stack.depth,
                "file": str(path),
                "default": stack == serving.stack,
                "candidate": path.stem == default and stack != serving.stack,
                "stale": out_of_date(workspace, stack),
            }
        )
    result = {
        "workspace": str(workspace.folder),
        "place": workspace.place,
        "documents": len(workspace.engine),
        "lang": workspace.lang,
        "rankers": rankers,
        "stacks": stacks,
        "serving": [
            {"stack": str(one.stack), "versions": one.stack.versions, "since": one.since, "gate": one.gate}
            for one in serving.releases
        ],
    }
    if as_json:
        output.print_json(result)
        return
    documents = amount(len(workspace.engine), "document[|s]")
    click.echo(f"{documents} ({workspace.lang or 'no one language'}) in {workspace.place}")
    if workspace.engine.unfinished() is not None:
        click.echo("an ingest was interrupted: run the same command again, or any other ingest, to finish it")
    for found in rankers:
        if found["error"]:
            click.echo(f"ranker {found['name']}: {found['error']}")
            continue
        lacking = found["missing_features"]
        state = "features stored"
        if lacking:
            state = f"{amount(lacking, 'feature[|s]')} missing: run `rerank encode`"
        older = f"; stacks need {', '.join(found['older'])}, too" if found.get("older") else ""
        click.echo(f"ranker {found['name']} {found['version']}: {state}{older}")
    for row in stacks:
        by = " and ".join(row["retrieve"])
        stale = (
            f" (tuned before {', '.join(row['stale'])} was trained again: tune it)" if row["stale"] else ""
        )
        used = ", in use" if row["default"] else ", a candidate" if row["candidate"] else ""
        depth = amount(row["depth"], "candidate[|s]")
        click.echo(f"stack {row['stack']}, {row['normalisation']}, {depth} by {by}{used}{stale}")
    for place, one in enumerate(serving.releases):
        when = f"before, {place}: since" if place else "in use since"
        gate = ""
        if one.gate:
            measure, value, before = (one.gate[name] for name in ("measure", "value", "before_value"))
            gate = f", {measure} {value:.4f} against {before:.4f} (p {output.p_value(one.gate['p'])})"
        click.echo(f"{when} {one.since}: {one.stack}{gate}")
    if rankers and not serving.releases:
        click.echo(f"in use: {default} alone")


def out_of_date(workspace: Workspace, stack: Stack) -> list[str]:
    """Signals that were trained again since the stack was tuned; none can be told without its rankers."""
    from rerank.errors import RerankError

    try:
        return workspace.stale(stack)
    except RerankError:
        return []
