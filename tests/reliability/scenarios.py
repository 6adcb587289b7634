"""Every scenario by its name; each module tries one kind of trouble on real processes."""

from reliability import (
    batches,
    cuts,
    departures,
    holders,
    hostile_grpc,
    hostile_http1,
    hostile_http2,
    hostile_workers,
    kills,
    leavers,
    overload,
    reloads,
    reports,
    sources,
    survivals,
    watched_reports,
)
from reliability.report import Scenario

SCENARIOS: dict[str, Scenario] = {
    "kills": kills.run,
    "survivals": survivals.run,
    "survivals-apart": survivals.run_apart,
    "departures": departures.run,
    "reloads": reloads.run,
    "sources": sources.run,
    "reports": reports.run,
    "watched-reports": watched_reports.run,
    "cuts": cuts.run,
    "overload": overload.run,
    "leavers": leavers.run,
    "holders": holders.run,
    "batches": batches.run,
    "batches-s3": batches.run_in_bucket,
    "hostile-http1": hostile_http1.run,
    "hostile-http2": hostile_http2.run,
    "hostile-grpc": hostile_grpc.run,
    "hostile-workers": hostile_workers.run,
}
