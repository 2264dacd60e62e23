"""Draw ``bench.json``: each ratio beside its target, as SVG and PNG. For a Python that has matplotlib:

python tests/bench/plot.py bench.json docs/performance
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure

rcParams["svg.hashsalt"] = "cellbox"  # the same figures give the same file


def draw(rows: dict[str, dict[str, Any]], host: dict[str, Any], to: Path) -> None:
    """Write ``to``.svg and ``to``.png."""
    shown = [(name, row) for name, row in rows.items() if row.get("ratio") is not None][::-1]
    figure = Figure(figsize=(9, 0.34 * len(shown) + 1.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    colours = ["#2f7d4f" if row["met"] else "#b5533c" for _, row in shown]
    axes.barh(places, [row["ratio"] for _, row in shown], color=colours, height=0.62)
    for place, (_, row) in enumerate(shown):
        axes.plot([row["target"]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=1.6)
        axes.text(row["ratio"] * 1.06, place, f"{row['ratio']:.2f}", va="center", fontsize=8)
    axes.set_yticks(places, [f"{name}: beside {row['beside'].partition(' (')[0]}" for name, row in shown], fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("our median by theirs: less is better; the black mark is the target")
    axes.set_title(f"{host['cores']} cores, Linux {host['kernel']}", fontsize=9, loc="right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(to.with_suffix(".png"), dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    found = json.loads(source.read_text())
    draw(found["rows"], found["host"], target)
