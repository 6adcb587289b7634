"""The reliability suite: each module tries one kind of trouble on real processes."""

from reliability import cuts, kills
from reliability.report import Scenario

SCENARIOS: dict[str, Scenario] = {
    "kills": kills.run,
    "cuts": cuts.run,
}
