"""The report as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from rerank.reports.dense.charts import boxes, gaps, histograms, lines, recalls
from rerank.reports.dense.discs import disc, span
from rerank.reports.dense.figures import Figures, Group, Separation, Side
from rerank.reports.dense.maps import draw_map, key
from rerank.reports.dense.measuring import CONSTANT
from rerank.reports.dense.neighbours import NEAREST, NONE, OTHER, Share
from rerank.reports.dense.numbers import Order
from rerank.reports.dense.sensitivity import VALUES, Sensitivity
from rerank.reports.dense.style import STYLE
from rerank.reports.dense.svg import number

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: whatever a title holds, the page loads and runs nothing."""
NO_MARGIN = ("contrastive", "semantics")
"""Objectives that ask for no structural margin."""
RELATED = {
    "categories": "having a category in common",
    "cocitation": "being linked by the same third document",
}
"""What relates documents, where it is not their links."""


def page(figures: Figures) -> str:
    """Write the page."""
    body = "".join(
        part
        for section in (_head, _glance, _separation, _levels, _margins, _map, _sensitivity)
        for part in section(figures)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>What dense has learned</title><style>{STYLE}</style></head><body><main>{body}</main></body>"
        "</html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out cells; they are escaped here."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(drawing: str, caption: str) -> str:
    """Put a caption under a drawing; the caption is HTML."""
    return f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>"


def remark(words: str) -> str:
    """Set something apart that the reader should know."""
    return f'<p class="remark">{escape(words)}</p>'


def _sides(figures: Figures) -> list[tuple[str, Side]]:
    before = [("before training", figures.before)] if figures.before is not None else []
    return [*before, ("after training" if before else "trained", figures.after)]


def _both(figures: Figures, get: Callable[[Side], float | None], digits: int = 3) -> list[str]:
    return [number(get(side), digits) for _, side in _sides(figures)]


def _columns(figures: Figures) -> list[str]:
    return [name for name, _ in _sides(figures)]


def _head(figures: Figures) -> Iterator[str]:
    s = figures.settings
    layers = f", its first {s['layers']} layers" if s.get("layers") else ""
    weights = ", random weights" if s.get("random_weights") else ""
    yield "<h1>What <code>dense</code> has learned</h1>"
    yield (
        f'<p class="lead">Ranker {escape(figures.version)}: {escape(str(s["model"]))}{layers}{weights},'
        f" trained by <code>{escape(str(s['objective']))}</code> on {figures.linked_pairs:,} linked pairs of"
        f" {figures.documents:,} documents. Distances are measured from {figures.anchors:,} documents to"
        f" others, {figures.encoded:,} documents in all, each by its first {s['fragment_tokens']} tokens.</p>"
    )
    relation = s.get("structure_from", "links")
    if relation in RELATED:
        yield remark(f"“Linked” is here: {RELATED[relation]}.")
    if figures.against not in (None, "untrained"):
        yield remark(f"“Before training” is another encoder here: {figures.against}.")
    for words in figures.remarks:
        yield remark(f"{words} The trained encoder is shown alone.")
    if not figures.best and figures.against == "untrained":
        yield remark(
            "No state of the training found held-out links better than the untrained encoder, so that was"
            " kept: before and after are the same."
        )
    if not figures.same:
        yield remark(
            "Documents or links have changed since the training (or it was done by an older version), so"
            " nobody can tell which links were held out: all links are shown as one."
        )


def _glance(figures: Figures) -> Iterator[str]:
    def order(get: Callable[[Side], Order | None]) -> list[str]:
        found = [get(side) for _, side in _sides(figures)]
        return [number(one.correlation if one else None) for one in found]

    def share(name: str, get: Callable[[Side], Share | None]) -> list[str] | None:
        one = get(figures.after)
        if one is None:
            return None
        return [name, *_both(figures, lambda s: getattr(get(s), "nearest", None)), number(one.chance)]

    rows: list[list[str] | None] = [
        ["a linked document is nearer than another", *_both(figures, lambda s: s.linked.nearer), "0.500"],
        ["the same, for held-out links", *_both(figures, lambda s: s.held_out.nearer), "0.500"]
        if figures.after.held_out.pairs
        else None,
        ["rank correlation of level and distance", *order(lambda s: s.level_order), "0.000"],
        ["rank correlation of hops and distance", *order(lambda s: s.hop_order), "0.000"],
        share(f"of the {NEAREST} nearest, a category in common", lambda s: s.common_category),
        share(f"of the {NEAREST} nearest, linked", lambda s: s.common_link),
        share(f"of the {NEAREST} nearest, linked by a held-out link", lambda s: s.common_held_out),
    ]
    yield table(["at a glance", *_columns(figures), "by chance"], [row for row in rows if row])
    history = figures.history
    kept = next(
        (m for m in history if (m["step"], m.get("share", 1.0)) == (figures.best, figures.share)), None
    )
    if kept is not None and kept["recall10"] is not None and figures.held_out_pairs:
        first = history[0]
        way = f"{figures.share:g} of the way to that " if figures.share < 1 else ""
        yield (
            f"<p>R@10 of the {figures.held_out_pairs:,} held-out links was {first['recall10']:.4f} with the"
            f" untrained encoder and {kept['recall10']:.4f} with the one that was kept, {way}of step"
            f" {figures.best}. They chose it, so they flatter it a little.</p>"
        )


def _separation(figures: Figures) -> Iterator[str]:
    yield "<h2>Related and unrelated documents</h2>"
    yield (
        "<p>Filled: distances of documents to one they are linked with. Dashed line: to one that they are"
        " neither linked with nor near to in the link graph. Upright lines: medians.</p>"
    )
    kinds: list[tuple[str, str, Callable[[Side], Separation]]] = [
        ("Links that were learned from" if figures.same else "Links", "linked", lambda s: s.linked)
    ]
    if figures.after.held_out.pairs:
        kinds.append(("Held-out links, never learned from", "held-out", lambda s: s.held_out))
    elif figures.same:
        yield remark("No links were held out of the training, so none show what it finds by itself.")
    rows = []
    for title, what, get in kinds:
        sides = [(name, get(side)) for name, side in _sides(figures)]
        if not sides[-1][1].pairs:
            yield remark(f"{title}: no pair could be drawn.")
            continue
        top = 1.08 * max(v for _, f in sides for v in (*f.related_histogram, *f.unrelated_histogram))
        yield f"<h3>{title}</h3>"
        drawn = [
            figure(
                histograms(found, figures.edges, top, f"{title}, {name}"),
                f"{name}: a {what} one is nearer with probability <b>{number(found.nearer)}</b>",
            )
            for name, found in sides
        ]
        yield f'<div class="pair">{"".join(drawn)}</div>'
        rows += [
            [
                f"{what}, {name}",
                f"{found.pairs:,}",
                *(number(q[2] if q else None) for q in (found.related, found.unrelated)),
                number(found.nearer),
                number(found.same_anchor),
            ]
            for name, found in sides
        ]
    header = ["", "pairs", "median, related", "unrelated", "nearer (AUC)", "from the same document"]
    if rows:
        yield table(header, rows)
        yield (
            "<small>Nearer: probability that a related pair is nearer than an unrelated one, over all pairs"
            " (area under the ROC curve), and of two pairs from the same document. 0.5 is chance.</small>"
        )


def _levels(figures: Figures) -> Iterator[str]:
    yield "<h2>Distance by level and by hops</h2>"
    count = figures.settings["related"]
    related = f"The {count} most intimate documents of each" if count else "All that a document can reach"
    yield (
        f"<p>{related} are halved again and again: the first is at the"
        " deepest level, the farther half at level 1. One of each level is drawn for each document.</p>"
    )
    yield from _grouped(
        figures,
        "level",
        lambda s: s.levels,
        lambda s: s.level_order,
        "Box: half of the pairs; whiskers: 90 %; bar: median. Distances should grow downwards.",
    )
    far = " A document's own fragments are zero hops apart." if figures.after.hops[:1] else ""
    yield (
        f"<h3>Hops</h3><p>How many links lie between two documents, both directions counting"
        f"{', held-out links taken away' if figures.held_out_pairs else ''}.{far}</p>"
    )
    yield from _grouped(
        figures, "hops", lambda s: s.hops, lambda s: s.hop_order, "As above; distances should grow downwards."
    )


def _grouped(
    figures: Figures,
    what: str,
    groups: Callable[[Side], list[Group]],
    order: Callable[[Side], Order | None],
    caption: str,
) -> Iterator[str]:
    before = groups(figures.before) if figures.before is not None else None
    key = "Hollow: before, filled: after training. " if before is not None else ""
    drawn = boxes(before, groups(figures.after), f"Distance by {what}", what)
    yield figure(f'<div class="wide">{drawn}</div>', key + caption)
    rows = []
    for name, side in _sides(figures):
        found = order(side)
        if found is not None:
            rows.append(
                [
                    name,
                    f"{found.sets:,}",
                    number(found.correlation),
                    *(f"{100 * v:.1f} %" for v in (found.exact, found.one_off, found.farther)),
                ]
            )
    if not rows or found is None:
        return
    chance = (found.chance_exact, found.chance_one_off, 1 - found.chance_exact - found.chance_one_off)
    rows.append(["by chance", "", "0.000", *(f"{100 * v:.1f} %" for v in chance)])
    yield table(
        ["by distance", "documents", "rank correlation", "right place", "one place off", "farther off"], rows
    )


def _margins(figures: Figures) -> Iterator[str]:
    if not figures.after.rings:
        return
    objective = str(figures.settings["objective"])
    asks = objective not in NO_MARGIN
    yield "<h2>Rings around a document, and the margins</h2>"
    yield (
        "<p>The document is in the centre. Each ring is the mean distance of the documents of a level, with"
        " its number; ∅, dashed: unrelated ones. Dots: some of them. Euclidean distances of the vectors as"
        " they come, as the losses with a margin see them.</p>"
    )
    sides = _sides(figures)
    low, high = span(*(side.rings for _, side in sides))
    drawn = [
        figure(disc(side.rings, low, high, f"Rings, {name}"), f"{name}; vectors {side.length:.2f} long")
        for name, side in sides
    ]
    yield f'<div class="pair">{"".join(drawn)}</div>'
    hole = f"the hole in the centre stands for all distances below {low:.2f}, and " if low else ""
    yield (
        f"<small>The picture is cut to where the rings are: {hole}documents beyond {high:.2f} lie outside."
        " How much levels overlap is above.</small>"
    )
    yield "<h3>Margins</h3>"
    if asks:
        schedule = "constant" if objective in CONSTANT else figures.settings.get("margin", "harmonic")
        shape = {"constant": "at every level", "geometric": "at level 1, halved from level to level"}.get(
            schedule, "divided by the level"
        )
        yield (
            f"<p>The loss asks for a negative that is farther than the positive by"
            f" {figures.settings['structural_margin']:g}, {shape}: the upright bars.</p>"
        )
    else:
        yield (
            f"<p>The objective <code>{escape(objective)}</code> asks for no margin. The broken bars are what"
            f" <code>quintuplet</code> would ask for with its margin of"
            f" {figures.settings['structural_margin']:g}, divided by the level.</p>"
        )
    before = figures.before.margins if figures.before is not None else None
    key = "Hollow: before, filled: after training" if before is not None else "Discs: the trained encoder"
    chart = gaps(before, figures.after.margins, "" if asks else "compared", "Margins by level")
    yield figure(f'<div class="wide">{chart}</div>', key)
    known = {m.level: m for m in before or []}
    rows = []
    for m in figures.after.margins:
        both = [known[m.level]] if m.level in known else []
        cells = [(n.farther - n.nearer, n.in_order, n.kept) for n in (*both, m)]
        rows.append(
            [
                str(m.level),
                f"{m.asked:.2f}",
                *(f"{gap:.3f}" for gap, _, _ in cells),
                *(f"{100 * v:.0f} %" for _, v, _ in cells),
                *(f"{100 * v:.0f} %" for _, _, v in cells),
            ]
        )
    names = ["before", "after"] if before is not None else [""]
    header = ["level", "asked"]
    for what in ("gap", "in order", "by the margin"):
        header += [f"{what} {name}".strip() for name in names]
    yield table(header, rows)
    yield "<small>Structural pairs, drawn as the training draws them.</small>"


def _map(figures: Figures) -> Iterator[str]:
    yield "<h2>Map of a sample</h2>"
    marks = [one.mark for one in figures.mapped]
    sides = [(name, side) for name, side in _sides(figures) if side.map]
    if not sides:
        yield remark(f"There are too few documents for a map ({len(marks)}).")
        return
    yield (
        f"<p>{len(marks):,} documents that have links, put into the plane by t-SNE so that near ones stay"
        " near; the second map starts from the first. A title shows when the pointer rests on a mark.</p>"
        if len(sides) > 1
        else f"<p>{len(marks):,} documents that have links, put into the plane by t-SNE so that near ones"
        " stay near. A title shows when the pointer rests on a mark.</p>"
    )
    if not figures.categories:
        why = "are too common to tell anything apart" if figures.categories_left_out else "are not given"
        yield remark(f"Categories of these documents {why}, so that all marks are alike.")
    rest, without = marks.count(OTHER), marks.count(NONE)
    yield key(figures.categories, figures.category_counts, rest, without)
    if figures.categories_left_out:
        names = ", ".join(figures.categories_left_out[:5])
        yield f"<small>Left out, as over half of the documents have it: {escape(names)}. </small>"
    if figures.categories:
        yield (
            "<small>The most frequent categories, with the number of marks: a document that has several has"
            " the mark of the rarest.</small>"
        )
    drawn = [figure(draw_map(side.map, figures.mapped, f"Map, {name}"), name) for name, side in sides]
    yield f'<div class="pair">{"".join(drawn)}</div>'
    rows = []
    kinds: list[tuple[str, Callable[[Side], Share | None]]] = [
        ("a category in common", lambda s: s.common_category),
        ("linked" + (", learned from" if figures.held_out_pairs else ""), lambda s: s.common_link),
        ("linked, held out", lambda s: s.common_held_out),
    ]
    for name, get in kinds:
        found = [get(side) for _, side in sides]
        if found[-1] is not None:
            shares = [f"{100 * one.nearest:.1f} %" for one in found if one is not None]
            rows.append([name, f"{found[-1].documents:,}", *shares, f"{100 * found[-1].chance:.1f} %"])
    if rows:
        header = [f"of the {NEAREST} nearest", "documents", *(name for name, _ in sides), "by chance"]
        yield table(header, rows)
        yield (
            "<small>By cosine among the documents of the map, not by the map's two dimensions; means over"
            " the documents that have any such document there.</small>"
        )


def _sensitivity(figures: Figures) -> Iterator[str]:
    yield "<h2>Sensitivity to gamma and the margins</h2>"
    found = figures.sensitivity
    if found is None:
        yield (
            "<p>No runs yet. <code>rerank report dense --sensitivity</code> trains short ones (with the"
            " ranker's settings, over gamma and the two margins) and shows them here.</p>"
        )
        return
    first = next(run for runs in found.curves.values() for run in runs)
    yield (
        f"<p>Short trainings of {found.steps} steps by <code>{escape(found.objective)}</code>, one seed, each"
        " measured once, after its last step, by held-out links:"
        f" {found.looked_for:,} documents look for theirs among {found.pool:,}. Dotted: the untrained encoder"
        f" (R@5 {first.untrained5:.4f}, R@10 {first.untrained10:.4f}). Solid, discs: R@10; dashed, squares:"
        " R@5. Gamma 0 is structure alone, 1 semantics alone.</p>"
    )
    if found.objective != figures.settings["objective"]:
        yield remark(
            f"The ranker's objective, {figures.settings['objective']}, has no such settings; these runs are"
            f" by {found.objective}."
        )
    if found.missing:
        yield remark(f"{found.missing} runs are missing; the same command goes on with them.")
    within = recalls(run for runs in found.curves.values() for run in runs)
    drawn = [
        figure(lines(name, found.curves[name], found.own[name], within, f"Recall by {name}"), "")
        for name in VALUES
        if len(found.curves[name]) > 1
    ]
    yield f'<div class="pair">{"".join(drawn)}</div>'
    yield from _runs(found)
    yield (
        f"<small>One more or fewer found link of {found.looked_for:,} documents with one each moves R by"
        f" {1 / max(1, found.looked_for):.4f}; small differences mean nothing.</small>"
    )


def _runs(found: Sensitivity) -> Iterator[str]:
    rows = []
    for name in VALUES:
        for run in found.curves[name]:
            value = getattr(run, name)
            own = " (ranker's)" if value == found.own[name] else ""
            loss = "–" if run.loss is None else f"{run.loss:.3f}"
            words = f"{name.replace('_', ' ')} {value:g}{own}"
            rows.append([words, f"{run.recall5:.4f}", f"{run.recall10:.4f}", loss])
    yield table(["setting", "R@5", "R@10", "mean loss"], rows)
