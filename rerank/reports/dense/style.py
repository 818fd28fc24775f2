"""How the page looks: in light and in dark, on paper, and without telling colours apart."""

from __future__ import annotations

from collections.abc import Mapping

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1a1f26",
    "soft": "#57606c",
    "grid": "#dfe3e8",
    "panel": "#f5f7f9",
    "near": "#0a62a9",
    "far": "#b8500a",
    "c0": "#0a62a9",
    "c1": "#b8500a",
    "c2": "#1a7a45",
    "c3": "#7a45b0",
    "c4": "#b3263a",
    "c5": "#0b7780",
    "c6": "#7a5b12",
    "other": "#8a939e",
}
DARK = {
    "paper": "#14181d",
    "ink": "#e8ecf0",
    "soft": "#a7b0bb",
    "grid": "#343b45",
    "panel": "#1c2229",
    "near": "#62b0f2",
    "far": "#f2a15c",
    "c0": "#62b0f2",
    "c1": "#f2a15c",
    "c2": "#62cf92",
    "c3": "#c2a1f5",
    "c4": "#f58a96",
    "c5": "#55d0d8",
    "c6": "#d9bb6a",
    "other": "#7b8590",
}
"""Every colour has a contrast of at least 3 to the paper, words of 4.5 (WCAG AA); the tests count."""


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,"DejaVu Sans",sans-serif}
main{max-width:800px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:28px;line-height:1.2;margin:0 0 8px}
h2{font-size:20px;margin:44px 0 8px;padding-top:12px;border-top:1px solid var(--grid)}
h3{font-size:15px;margin:16px 0 4px}
p,figcaption,li{overflow-wrap:anywhere}
.lead,.soft,figcaption,small{color:var(--soft)}
figcaption,small{font-size:14px}
figure{margin:12px 0 20px}
.remark{background:var(--panel);border-left:4px solid var(--far);padding:8px 12px;margin:12px 0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:8px 20px}
.wide{overflow-x:auto}
svg{display:block;max-width:100%;height:auto}
.wide>svg{min-width:560px}
table{border-collapse:collapse;margin:10px 0;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:3px 14px 3px 0;text-align:right;vertical-align:baseline}
th:first-child,td:first-child{text-align:left}
thead th{color:var(--soft);font-weight:400;border-bottom:1px solid var(--grid)}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;padding:0;margin:8px 0;font-size:14px}
.key svg{display:inline-block;vertical-align:-3px}
.key span{color:var(--soft)}
text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:var(--ink)}
text.soft{fill:var(--soft)}
text.tiny{font-size:10px;fill:var(--soft)}
text.strong{font-weight:700;fill:var(--ink)}
.grid{stroke:var(--grid)}
.axis{stroke:var(--soft)}
.related{fill:var(--near);fill-opacity:.35;stroke:var(--near);stroke-width:1.5}
.unrelated{fill:none;stroke:var(--far);stroke-width:1.8;stroke-dasharray:5 3}
.related-line{stroke:var(--near);stroke-width:1.5}
.unrelated-line{stroke:var(--far);stroke-width:1.5;stroke-dasharray:2 3}
.box,.whisker,.median,.point{stroke:var(--soft);stroke-width:1.4;fill:none}
.box.after,.point.after{fill:var(--near);stroke:var(--near)}
.whisker.after{stroke:var(--near)}
.median.after{stroke:var(--ink);stroke-width:2.4}
.median.before{stroke:var(--soft);stroke-width:2.4}
.box.before,.point.before{fill:var(--paper)}
.moved{stroke:var(--soft);stroke-dasharray:2 3}
.asked{stroke:var(--far);stroke-width:3}
.asked.compared{stroke-width:2;stroke-dasharray:3 2}
.ring-grid{fill:none;stroke:var(--grid)}
.ring{fill:none;stroke:var(--near);stroke-width:2}
.ring.far{stroke:var(--far);stroke-dasharray:6 4}
.dot{fill:var(--near);fill-opacity:.4}
.dot.far{fill:var(--far)}
.badge{fill:var(--paper);stroke:var(--near);stroke-width:1.5}
.badge.far{stroke:var(--far)}
.shade1{opacity:.87}.shade2{opacity:.76}.shade3{opacity:.66}.shade4{opacity:.58}
.badge{opacity:1}
.anchor{fill:var(--ink)}
.other{fill:var(--other);fill-opacity:.55}
.none{fill:none;stroke:var(--other);stroke-width:1}
.spot{stroke:var(--paper);stroke-width:.6}
.spot.open{fill:none;stroke-width:2}
.curve{fill:none;stroke-width:2}
.curve.ten{stroke:var(--near)}.curve.five{stroke:var(--far);stroke-dasharray:6 3}
.knot.ten{fill:var(--near)}.knot.five{fill:var(--paper);stroke:var(--far);stroke-width:2}
.plain{stroke:var(--soft);stroke-width:1.4;stroke-dasharray:2 4}
@media print{
body{font-size:11pt}main{max-width:none;padding:0}
figure,table,.remark{break-inside:avoid}h2,h3{break-after:avoid}
}
"""
SPOTS = "".join(f".spot.c{i}{{fill:var(--c{i})}}.spot.c{i}.open{{stroke:var(--c{i})}}" for i in range(7))
STYLE = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    f"{RULES}{SPOTS}.spot.open{{fill:none}}"
)
