"""Draws docs/images/served.svg: what engines compute, and how much of it reaches OpenAI clients.

    pip install --group plots && python tools/plot_served.py

The figures are those of docs/PERFORMANCE.md, "The reference executor on a GPU"; change them in both places.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib import pyplot

OUTPUT = Path(__file__).parents[1] / "docs/images/served.svg"

ENGINE_COLOR, CLIENTS_COLOR = "#c9d3df", "#2f6f4f"


@dataclass(frozen=True)
class Server:
    """Tokens/s of 256 streams on one H200: the engine alone, and the range at the clients."""

    name: str
    engine: int
    clients: tuple[int, int]

    @property
    def middle(self) -> float:
        return sum(self.clients) / 2


MODELS = {
    "16 layers of 1,024": [
        Server("Inflight", 128_621, (119_696, 127_328)),
        Server("vLLM 0.24", 57_895, (15_600, 18_300)),
    ],
    "Llama-3.1-8B's shape": [
        Server("Inflight", 16_641, (18_522, 18_790)),
        Server("vLLM 0.24", 15_388, (15_300, 15_300)),
    ],
}


def main() -> None:
    # Letters as text and fixed ids: a small file that changes only where a figure does.
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "inflight", "font.size": 10}
    figure, panels = pyplot.subplots(1, len(MODELS), figsize=(8.4, 2.3), layout="constrained")
    for panel, (model, servers) in zip(panels, MODELS.items(), strict=True):
        rows = range(len(servers))
        panel.barh(rows, [one.engine for one in servers], 0.72, color=ENGINE_COLOR, label="engine alone")
        panel.barh(rows, [one.middle for one in servers], 0.36, color=CLIENTS_COLOR, label="at the clients")
        widest = max(max(one.engine, one.middle) for one in servers)
        for row, one in enumerate(servers):
            end = max(one.engine, one.middle) + widest * 0.02
            panel.text(end, row, f"{one.middle / one.engine:.2f}", va="center", weight="bold")
        panel.set_title(f"{model}, 256 streams", fontsize=10)
        panel.set_yticks(rows, [one.name for one in servers])
        panel.invert_yaxis()
        panel.set_xlim(0, widest * 1.16)
        panel.set_xlabel("tokens/s")
        panel.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panel.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    OUTPUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUTPUT, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
