"""Gateways that share a PostgreSQL: one is killed and the database crashes, and each line has one result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.authority import make_authority
from support.batches import outlive_holder, requests, results
from support.http import get
from support.postgres import PASSWORD, Postgres, binaries, postgres
from support.processes import InflightProcess, wait_until
from support.servers import Start, openai_client, start_worker, wait_ready

pytestmark = pytest.mark.skipif(
    binaries() is None, reason="PostgreSQL is not installed: tools/install-system-packages database"
)

LINES = 300
#: A lease, a database that starts, and the lines that are left.
END_S = 90.0


def gateway_on(start: Start, worker: InflightProcess, database: Postgres) -> InflightProcess:
    """A gateway that keeps its batches there."""
    address = f"--worker={worker.address('grpc')}"
    environment = {"PGPASSWORD": PASSWORD}
    store = f"--data-url={database.url}"
    return start("gateway", "--port=0", address, store, "--batch-lines=4", environment=environment)


def test_each_line_has_one_result_whatever_dies(start: Start, tmp_path: Path) -> None:
    worker = start_worker(start, "--step-us=20000")
    with postgres() as database:
        gateways = [gateway_on(start, worker, database) for _ in range(2)]
        addresses = [wait_ready(gateway) for gateway in gateways]
        file = requests(tmp_path / "in.jsonl", LINES, max_tokens=10, ignore_eos=True)
        one = openai_client(addresses[0])
        with file.open("rb") as content:
            uploaded = one.files.create(file=content, purpose="batch")
        created = one.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        )

        def completed(address: str) -> int:
            answer = get(address, f"/v1/batches/{created.id}")
            return int(answer.json()["request_counts"]["completed"]) if answer.status == 200 else -1

        place = outlive_holder(gateways, addresses, completed, END_S)
        left = addresses[place]
        assert completed(left) < LINES, "it was too fast for this test"
        database.crash()
        refused = get(left, f"/v1/batches/{created.id}")
        assert refused.status == 503, refused.body
        assert "cannot be read or written now" in refused.json()["error"]["message"]
        assert str(database.port) not in refused.body.decode()
        assert get(left, "/health/ready").status == 200, "clients are served without it"
        database.start()

        def ended() -> bool:
            answer = get(left, f"/v1/batches/{created.id}")
            return answer.status == 200 and answer.json()["status"] == "completed"

        wait_until("it ends", ended, END_S)
        batch = get(left, f"/v1/batches/{created.id}").json()
        output = tmp_path / "out.jsonl"
        output.write_bytes(get(left, f"/v1/files/{batch['output_file_id']}/content").body)
        assert results(output) == {f"r{n}": 200 for n in range(LINES)}
        assert gateways[place].stop() == 0
        assert not any(PASSWORD in gateway.log for gateway in gateways)
        assert "panicked" not in gateways[place].log


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://inflight:{secret}@127.0.0.1:1/x", "cannot use the database"),
        ("mysql://inflight:{secret}@127.0.0.1/x", "postgresql://USER@HOST/DATABASE"),
    ],
)
def test_a_database_that_cannot_be_used_says_why(start: Start, url: str, says: str) -> None:
    environment = {"INFLIGHT_DATA_URL": url.format(secret=PASSWORD)}
    gateway = start("gateway", "--port=0", "--worker=127.0.0.1:9", environment=environment)
    assert gateway.wait() == 2, gateway.log
    assert says in gateway.log
    assert PASSWORD not in gateway.log, json.dumps(gateway.log)


def test_the_database_is_asked_over_tls(start: Start, tmp_path: Path) -> None:
    worker = start_worker(start)
    authority = make_authority(tmp_path / "authority")
    trusted = {"PGPASSWORD": PASSWORD, "SSL_CERT_FILE": str(authority.ca)}
    with postgres() as database:
        database.stop()
        database.encrypt(*authority.issue("database", "localhost"))
        database.start()
        url = database.url.replace("127.0.0.1", "localhost")
        address = f"--worker={worker.address('grpc')}"

        def gateway(url: str, environment: dict[str, str]) -> InflightProcess:
            return start("gateway", "--port=0", address, f"--data-url={url}", environment=environment)

        served = gateway(f"{url}?sslmode=require", trusted)
        assert get(wait_ready(served), "/v1/files").json()["data"] == []
        for where, environment, says in (
            # Its certificate is for another name, nobody vouches for it, or it does not speak plain text.
            (f"{database.url}?sslmode=require", trusted, "127.0.0.1"),
            (f"{url}?sslmode=require", {"PGPASSWORD": PASSWORD}, "certificate"),
            (url, trusted, "pg_hba.conf"),
        ):
            refused = gateway(where, environment)
            assert refused.wait() == 2, refused.log
            assert says in refused.log
            assert PASSWORD not in refused.log
