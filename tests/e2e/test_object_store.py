"""Gateways with their contents in a bucket: what is there, and what happens while its server is away."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import openai
import pytest

from support.authority import make_authority
from support.batches import outlive_holder, requests, results, running
from support.http import get, request
from support.object_store import BUCKET, SECRET, ObjectStore, object_store
from support.postgres import PASSWORD, binaries, postgres
from support.processes import InflightProcess, wait_until
from support.servers import Start, openai_client, start_worker, wait_ready

LINES = 200
END_S = 90.0
PLACE = f"--data-objects=s3://{BUCKET}/of/tests"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as made:
        yield made


ClientOf: TypeAlias = Callable[[str], openai.OpenAI]


@pytest.fixture
def client_of() -> Iterator[ClientOf]:
    with ExitStack() as clients:

        def client_of(address: str) -> openai.OpenAI:
            client = openai_client(address)
            return clients.enter_context(client)

        yield client_of


def test_contents_are_objects_as_long_as_somebody_needs_them(
    start: Start, tmp_path: Path, store: ObjectStore, client_of: ClientOf
) -> None:
    worker = start_worker(start)
    data = f"--data-dir={tmp_path / 'data'}"
    gateway = start(
        "gateway",
        "--port=0",
        f"--worker={worker.address('grpc')}",
        data,
        PLACE,
        environment=store.environment(),
    )
    client = client_of(wait_ready(gateway))
    # More than two parts.
    content = random.Random(1).randbytes(20 << 20)
    large = client.files.create(file=("large.bin", content), purpose="user_data")
    assert large.bytes == len(content)
    assert sorted(store.objects().values()) == [len(content)]
    assert client.files.content(large.id).read() == content
    with client.files.with_streaming_response.content(large.id) as answer:
        assert next(answer.iter_bytes(1000)) == content[:1000]
    file = requests(tmp_path / "in.jsonl", 5)
    with file.open("rb") as lines:
        uploaded = client.files.create(file=lines, purpose="batch")
    batch = client.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    wait_until("it ends", lambda: client.batches.retrieve(batch.id).status == "completed")
    ended = client.batches.retrieve(batch.id)
    assert ended.output_file_id is not None
    output = tmp_path / "out.jsonl"
    output.write_bytes(client.files.content(ended.output_file_id).read())
    assert results(output) == {f"r{n}": 200 for n in range(5)}
    names = {file.id for file in client.files.list()}
    assert names == {large.id, uploaded.id, ended.output_file_id}
    assert len(store.objects()) == 3
    for name in names:
        assert client.files.delete(name).deleted
    wait_until("the objects are gone", lambda: store.objects() == {})
    # A client that goes away in the middle of an upload.
    form = b'--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n'
    media_type = {"content-type": "multipart/form-data; boundary=b"}
    cut = request(client.base_url.netloc.decode(), "POST", "/v1/files", form + content[: 9 << 20], media_type)
    assert cut.status == 400, cut.body
    wait_until("what came of it is gone", lambda: store.objects() == {})
    assert gateway.stop() == 0
    assert SECRET not in gateway.log
    assert "X-Amz" not in gateway.log


@pytest.mark.skipif(
    binaries() is None, reason="PostgreSQL is not installed: tools/install-system-packages database"
)
def test_each_line_has_one_result_whatever_dies(start: Start, tmp_path: Path, client_of: ClientOf) -> None:
    worker = start_worker(start, "--step-us=20000")
    with ExitStack() as servers:
        database = servers.enter_context(postgres())
        store = servers.enter_context(object_store())

        def gateway() -> InflightProcess:
            return start(
                "gateway",
                "--port=0",
                f"--worker={worker.address('grpc')}",
                f"--data-url={database.url}",
                PLACE,
                "--batch-lines=4",
                environment={"PGPASSWORD": PASSWORD, **store.environment()},
            )

        gateways = [gateway() for _ in range(2)]
        addresses = [wait_ready(one) for one in gateways]
        file = requests(tmp_path / "in.jsonl", LINES, max_tokens=10, ignore_eos=True)
        client = client_of(addresses[0])
        with file.open("rb") as content:
            uploaded = client.files.create(file=content, purpose="batch")
        created = client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        )

        def completed(address: str) -> int:
            return int(get(address, f"/v1/batches/{created.id}").json()["request_counts"]["completed"])

        place = outlive_holder(gateways, addresses, completed, END_S)
        left = addresses[place]
        # What it has read runs on; then the batch waits.
        store.crash()
        wait_until("nothing runs", lambda: running(left) == 0, END_S)
        waits_at = completed(left)
        assert waits_at < LINES, "it was too fast for this test"
        with pytest.raises(openai.InternalServerError) as refused:
            client_of(left).files.content(uploaded.id)
        assert refused.value.status_code == 503
        assert "cannot be read or written now" in refused.value.message
        assert str(store.port) not in refused.value.message
        with pytest.raises(openai.InternalServerError):
            client_of(left).files.create(file=("x", b"x"), purpose="batch")
        assert get(left, "/health/ready").status == 200, "clients are served without it"
        store.start()
        wait_until("lines are done again", lambda: completed(left) > waits_at, END_S)
        # The end is waited for as well.
        wait_until("nearly all are done", lambda: completed(left) > LINES - 20, END_S)
        store.crash()
        store.start()
        wait_until(
            "it ends", lambda: client_of(left).batches.retrieve(created.id).status == "completed", END_S
        )
        batch = client_of(left).batches.retrieve(created.id)
        assert batch.output_file_id is not None
        output = tmp_path / "out.jsonl"
        output.write_bytes(client_of(left).files.content(batch.output_file_id).read())
        assert results(output) == {f"r{n}": 200 for n in range(LINES)}
        assert gateways[place].stop() == 0
        for one in gateways:
            assert SECRET not in one.log
            assert "panicked" not in one.log


@pytest.mark.parametrize(
    ("place", "changes", "says"),
    [
        (BUCKET, {"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, "does not accept the credentials"),
        (BUCKET, {"AWS_ACCESS_KEY_ID": "NOBODY"}, "does not accept the credentials"),
        (BUCKET, {"AWS_SECRET_ACCESS_KEY": ""}, "set `AWS_ACCESS_KEY_ID` and"),
        (BUCKET, {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}, "cannot connect to `127.0.0.1:1`"),
        (BUCKET, {"AWS_ENDPOINT_URL_S3": "wrong-secret"}, "`AWS_ENDPOINT_URL_S3` must be the URL"),
        ("no-such-bucket", {}, "the bucket `no-such-bucket` does not exist"),
        ("key:wrong-secret@bucket", {}, "must be `s3://BUCKET`"),
    ],
)
def test_a_bucket_that_cannot_be_used_says_why(
    start: Start, tmp_path: Path, store: ObjectStore, place: str, changes: dict[str, str], says: str
) -> None:
    gateway = start(
        "gateway",
        "--port=0",
        "--worker=127.0.0.1:9",
        f"--data-dir={tmp_path}",
        environment={"INFLIGHT_DATA_OBJECTS": f"s3://{place}", **store.environment(**changes)},
    )
    assert gateway.wait() == 2, gateway.log
    assert says in gateway.log, gateway.log
    assert SECRET not in gateway.log
    assert "wrong-secret" not in gateway.log


def test_contents_in_a_bucket_need_it(
    start: Start, tmp_path: Path, store: ObjectStore, client_of: ClientOf
) -> None:
    arguments = ("gateway", "--port=0", "--worker=127.0.0.1:9", f"--data-dir={tmp_path}")
    alone = start(*arguments[:3], PLACE)
    assert alone.wait() == 2
    assert "--data-dir" in alone.log, alone.log
    first = start(*arguments, PLACE, environment=store.environment())
    client_of(first.address("http")).files.create(file=("x", b"x"), purpose="batch")
    assert first.stop() == 0
    without = start(*arguments)
    assert without.wait() == 2
    assert f"pass `--data-objects s3://{BUCKET}/of/tests`" in without.log, without.log


def test_the_object_store_is_asked_over_tls(start: Start, tmp_path: Path, client_of: ClientOf) -> None:
    authority = make_authority(tmp_path / "authority")
    trusted = {"SSL_CERT_FILE": str(authority.ca)}
    with object_store(authority.issue("store", "localhost")) as encrypted:

        def gateway(host: str, environment: dict[str, str]) -> InflightProcess:
            endpoint = f"https://{host}:{encrypted.tls_port}"
            data = f"--data-dir={tmp_path / 'data'}"
            changed = encrypted.environment(AWS_ENDPOINT_URL_S3=endpoint, **environment)
            worker = "--worker=127.0.0.1:9"
            return start("gateway", "--port=0", worker, data, PLACE, environment=changed)

        served = gateway("localhost", trusted)
        client = client_of(served.address("http"))
        file = client.files.create(file=("x", b"over TLS"), purpose="user_data")
        assert client.files.content(file.id).read() == b"over TLS"
        # Nobody vouches for it, or it is for another name.
        for refused in (gateway("localhost", {}), gateway("127.0.0.1", trusted)):
            assert refused.wait() == 2, refused.log
            assert "the TLS handshake with" in refused.log
            assert "certificate" in refused.log
            assert SECRET not in refused.log
