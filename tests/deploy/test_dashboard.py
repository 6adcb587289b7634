"""The dashboard for Grafana: four questions, what to do at each plot, and Grafana's own schema. Whether its
queries have numbers is `test_watched`'s.
"""

from __future__ import annotations

import copy
import json
import re
import runpy
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "write_dashboard.py"))
FILES: tuple[Path, ...] = TOOL["FILES"]
DASHBOARD: dict[str, Any] = json.loads(FILES[0].read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_files_are_what_the_tool_writes(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == TOOL["written"](), "run tools/write_dashboard.py"


def test_it_asks_four_questions() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Is it slow?", "Is it full?", "Is it wrong?", "Whose fault?"]
    glance = [panel["title"].split("?")[0] for panel in DASHBOARD["panels"][:4]]
    assert glance == ["Slow", "Full", "Wrong", "Whose"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_says_what_to_do_in_one_sentence(panel: dict[str, Any]) -> None:
    action = panel["description"]
    assert action.endswith(".")
    assert len(re.findall(r"\.(?:\s|$)", action)) == 1
    assert 40 < len(action) < 200


@pytest.mark.parametrize("title", re.findall(r"in “(.*?)”", " ".join(one["description"] for one in PANELS)))
def test_where_a_panel_sends_is_there(title: str) -> None:
    assert title in {panel["title"] for panel in DASHBOARD["panels"]}


Complaints = Callable[[dict[str, Any]], list[str]]


@pytest.fixture(scope="module")
def complaints() -> Complaints:
    """What Grafana's schema does not have of a dashboard."""
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk needs Python 3.11")
    grafana = import_module("support.grafana")
    found: Complaints = grafana.complaints
    return found


def test_grafanas_schema_has_all_of_it(complaints: Complaints) -> None:
    assert complaints(DASHBOARD) == []


@pytest.mark.parametrize(
    "plant",
    [
        lambda it: it["panels"][0].update(grid=it["panels"][0].pop("gridPos")),
        lambda it: it["panels"][0]["options"].update(color_mode="value"),
        lambda it: it["panels"][0]["options"].update(colorMode="colour"),
        lambda it: it["panels"][5]["options"]["legend"].update(displayMode="lst"),
        lambda it: it["panels"][5]["targets"][0].update(query=it["panels"][5]["targets"][0].pop("expr")),
        lambda it: it["panels"][5]["fieldConfig"]["defaults"]["custom"].update(fillOpcity=1),
        lambda it: it["panels"][5]["fieldConfig"]["defaults"].update(min="0"),
        lambda it: it["panels"][0]["fieldConfig"]["defaults"]["thresholds"].update(mode="abs"),
        lambda it: it["templating"]["list"][1].update(type="qury"),
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[dict[str, Any]], object], complaints: Complaints
) -> None:
    dashboard = copy.deepcopy(DASHBOARD)
    plant(dashboard)
    assert complaints(dashboard)
