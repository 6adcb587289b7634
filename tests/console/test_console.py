"""The console in a real Chromium: chat, keys, what goes on, and whether everybody can use it.

`pytest -m "not browser"` leaves these out. `UPDATE_SNAPSHOTS=1` renews the pictures in docs/images.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.browser import CHROMIUM, DRIVER, Console, browser
from support.http import get, post, stream
from support.metrics import total
from support.servers import MODEL, Server, Start, start_gateway, start_worker, wait_ready

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="chromium is not installed: tools/install-system-packages browser",
    ),
]

ACTIVE = "inflight_gateway_active_requests"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 24}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]

Open = Callable[..., Console]


@pytest.fixture(scope="module")
def open_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Opens a page of a gateway's console, in a tab without a key."""
    with browser(tmp_path_factory.mktemp("profile")) as driver:

        def open_page(address: str, page: str = "chat") -> Console:
            console = Console(driver, address)
            console.prefer("light")
            driver.get(f"http://{address}/console/icon.svg")
            driver.execute_script("sessionStorage.clear()")
            console.open(page)
            console.messages()
            return console

        yield open_page


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core."""
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.skipif(MODEL is not None, reason="the words are the embedded model's")
def test_an_answer_streams_and_can_be_had_again_and_changed(open_console: Open, server: Server) -> None:
    console = open_console(server.http)
    console.set("temperature", "0")
    console.ask("What is machine learning?")
    [first] = console.wait_answers(1)
    assert first.startswith("Machine learning is")
    assert "tokens in" in console.one(".message.assistant .foot").text
    console.click("Regenerate")
    assert console.wait_answers(1) == [first], "greedy, so the same"
    console.click("Edit")
    editor = console.one(".message.user textarea")
    editor.clear()
    editor.send_keys("Tell me a joke")
    console.click("Send again")
    console.wait("the other answer is there", lambda: console.answers() and console.answers() != [first])
    assert len(console.all(".message.user")) == 1
    link = console.one(".message.assistant .actions a")
    link.click()
    console.wait("the way of the request is shown", lambda: console.all("#requests .way"))
    assert "sent to 127.0.0.1" in console.one("#requests").text
    assert console.messages() == []


@pytest.mark.skipif(MODEL is not None, reason="only the embedded model is known to call tools")
def test_a_call_is_answered_by_hand(open_console: Open, server: Server, axe: str) -> None:
    console = open_console(server.http)
    console.set("temperature", "0")
    console.set("tools", json.dumps(WEATHER))
    console.ask("What is the weather in Paris?")
    console.wait_answers(1)
    assert "get_weather" in console.one(".call").text
    assert "Paris" in console.one(".call pre").text
    assert console.violations(axe) == []
    console.one(".calls textarea").send_keys('{"temperature": 21, "unit": "celsius", "condition": "sunny"}')
    console.click("Send results")
    assert "sunny" in console.wait_answers(2)[1]
    console.click("As code")
    code = console.one("dialog.as-code").text
    assert "curl -N" in code
    assert '"tool_call_id"' in code
    assert "client.chat.completions.create(" in code
    console.click("Close")
    assert console.messages() == []


@pytest.mark.skipif(MODEL is not None, reason="the words are the embedded model's")
def test_models_answer_side_by_side_with_their_doubts(open_console: Open, server: Server, axe: str) -> None:
    console = open_console(server.http)
    console.set("temperature", "1.3")
    console.one("[name=logprobs]").click()
    console.set_more({"bad_words": ["examples", "way", "making", "better"]})
    console.click("Compare")
    console.ask("What is machine learning?")
    console.wait_answers(2)
    assert len(console.all(".column:first-child .token")) > 3
    console.one(".column:first-child .token:not(.p0)").click()
    assert "%" in console.one(".about-token").text
    assert console.violations(axe) == []
    console.prefer("dark")
    assert console.violations(axe) == []
    assert console.messages() == []


def test_a_setting_that_is_no_json_is_shown_and_nothing_is_sent(open_console: Open, server: Server) -> None:
    console = open_console(server.http)
    console.set("tools", "[{]")
    console.ask("Hello")
    console.wait("the mistake is named", lambda: "Functions" in console.one(".composer [role=alert]").text)
    assert console.one("[name=tools]").get_attribute("aria-invalid") == "true"
    assert console.all(".message") == []


def test_text_is_never_taken_as_html(open_console: Open, server: Server) -> None:
    console = open_console(server.http)
    harm = "<img src=x onerror=\"document.title='harmed'\"><b>bold</b>"
    console.set("max_tokens", "1")
    console.ask(harm)
    console.wait_answers(1)
    assert console.one(".message.user .body").text == harm
    assert console.all(".message.user .body *") == []
    # Whatever a script of the page may try.
    refused = "try { document.body.innerHTML = '<p>x</p>'; return false } catch (error) { return true }"
    assert console.driver.execute_script(f"return (() => {{ {refused} }})()") is True
    assert console.driver.title == "Inflight console"


def test_stop_ends_the_request_at_its_worker(open_console: Open, paced: Server) -> None:
    console = open_console(paced.http)
    console.ask("Count")
    console.wait("text arrives", lambda: console.all(".message.assistant[aria-busy=true] .body > *"))
    console.click("Stop")
    console.wait_answers(1)
    assert "stopped" in console.one(".message.assistant .foot").text

    def latest() -> str:
        requests = get(paced.http, "/console/requests").json()["requests"]
        return str(requests[0]["finish"]) if requests else ""

    console.wait("the gateway has heard", lambda: latest() == "cancelled")


def test_the_key_is_asked_for_and_stays_in_its_tab(open_console: Open, start: Start) -> None:
    worker = start_worker(start, "--step-us=0")
    gateway = start_gateway(start, [worker], "--api-key=sesame")
    console = open_console(wait_ready(gateway))

    def send(key: str) -> None:
        console.wait("the key is asked for", lambda: console.all("#key-dialog[open]"))
        console.one("#key-input").clear()
        console.one("#key-input").send_keys(key)
        console.click("Use it", "#key-dialog")

    send("wrong")
    console.wait("the refusal is shown", lambda: "API key" in console.one("#key-error").text)
    send("sesame")
    console.set("max_tokens", "4")
    console.ask("Hello")
    console.wait_answers(1)
    assert console.driver.execute_script("return localStorage.length + document.cookie.length") == 0
    first, opened = console.driver.current_window_handle, len(console.driver.window_handles)
    console.driver.switch_to.new_window("tab")
    try:
        assert len(console.driver.window_handles) == opened + 1
        console.open()
        console.wait("the other tab asks again", lambda: console.all("#key-dialog[open]"))
    finally:
        console.driver.close()
        console.driver.switch_to.window(first)


def test_live_shows_requests_and_a_worker_that_is_lost(open_console: Open, start: Start, axe: str) -> None:
    workers = [start_worker(start, "--step-us=20000") for _ in range(2)]
    gateway = start_gateway(start, workers)
    address = wait_ready(gateway)
    gateway.wait_until("both are ready", lambda: total(address, "inflight_gateway_worker_up") == 2)
    console = open_console(address)
    console.ask("Count")
    console.driver.execute_script("location.hash = 'live'")
    console.wait("the request is listed", lambda: "answers" in console.one("#live").text)
    console.wait("tokens are counted", lambda: console.all("#live .line.series-1[d*=L]"))
    assert console.violations(axe) == []
    workers[0].kill()
    lost = workers[0].address("grpc")

    def row() -> str:
        return next(row.text for row in console.all("#live tr") if row.text.startswith(lost))

    console.wait("the loss is shown", lambda: "ready\n" not in row() and " ready " not in row())
    console.prefer("dark")
    assert console.violations(axe) == []
    console.driver.get("about:blank")
    gateway.wait_until("leaving the page ends its request", lambda: total(address, ACTIVE) == 0)


def test_live_shows_requests_of_kserve_and_how_full_caches_are(
    open_console: Open, start: Start, axe: str
) -> None:
    worker = start_worker(start, "--step-us=20000", "--num-blocks=64")
    address = wait_ready(start_gateway(start, [worker]))
    console = open_console(address, "live")
    console.wait("the cache is empty", lambda: "0 % of 64 blocks" in console.one("#live").text)
    body = {"text_input": "hello", "max_tokens": 1200, "min_tokens": 1200}
    answer = stream(address, "/v2/models/ensemble/generate_stream", body)
    console.wait("the request is listed", lambda: "KServe generate_stream" in console.one("#live").text)
    console.wait(
        "it has a part of the cache", lambda: re.search(r"[1-9]\d* % of 64", console.one("#live").text)
    )
    assert console.violations(axe) == []
    answer.close()
    console.wait("it has left", lambda: "None is open." in console.one("#live").text)
    console.open("requests")
    console.wait(
        "it is among those that ended", lambda: "KServe generate_stream" in console.one("#requests").text
    )
    assert "cancelled" in console.one("#requests").text


def test_requests_that_were_refused_say_why(open_console: Open, start: Start, axe: str) -> None:
    worker = start_worker(start, "--step-us=0")
    gateway = start_gateway(start, [worker])
    address = wait_ready(gateway)
    chat = "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert post(address, chat, {**body, "max_tokens": -1}, {"x-request-id": "wrong-1"}).status == 400
    assert post(address, chat, {**body, "model": "nobody"}, {"x-request-id": "unknown-1"}).status == 404
    worker.kill()
    gateway.wait_until("it is lost", lambda: get(address, "/health/ready").status == 503)
    assert post(address, chat, body, {"x-request-id": "lost-1"}).status == 503
    console = open_console(address, "requests")
    console.wait("they are listed", lambda: len(console.all("#requests tbody tr")) == 3)
    rows = {row.text.split()[0]: row.text for row in console.all("#requests tbody tr")}
    assert "the request is wrong (field max_tokens" in rows["wrong-1"]
    assert "there is no such model or path" in rows["unknown-1"]
    assert "no worker could take it" in rows["lost-1"]
    assert console.violations(axe) == []
    console.open("requests/wrong-1")
    console.wait("its end is told", lambda: "refused with status 400" in console.one("#requests").text)
    assert console.violations(axe) == []
    # The page asks whether it is ready, and nothing else fails.
    assert all("/health/ready" in message for message in console.messages())


def test_the_other_pages_can_be_used_by_everybody(open_console: Open, server: Server, axe: str) -> None:
    console = open_console(server.http, "requests")
    assert console.violations(axe) == []
    console.driver.get(f"http://{server.http}/docs")
    console.one("summary").click()
    # All are alike, and hundreds would take axe-core half a minute.
    console.driver.execute_script(
        "document.querySelectorAll('details:not([open])').forEach((one) => one.remove())"
    )
    assert console.violations(axe) == []
    assert console.one(".bar").value_of_css_property("display") == "flex", "the policy allows the style"
    assert [link.text for link in console.all(".bar nav a")] == ["Chat", "Live", "Requests", "API"]
    assert console.messages() == []


@pytest.mark.timeout(300)
@pytest.mark.skipif("UPDATE_SNAPSHOTS" not in os.environ, reason="the pictures of the documentation are kept")
def test_pictures_are_renewed(open_console: Open, server: Server, start: Start) -> None:
    console = open_console(server.http)
    console.set("temperature", "1.4")
    console.one("[name=logprobs]").click()
    console.click("Compare")
    # The embedded model doubts nothing that it was trained on: without these words it must.
    console.set_more({"bad_words": ["examples", "way", "making", "better"]})
    console.ask("What is machine learning?")
    console.wait_answers(2)
    console.one(".column:first-child .token:not(.p0)").click()
    console.driver.save_screenshot(str(IMAGES / "console-chat.png"))
    workers = [start_worker(start, "--step-us=9000") for _ in range(2)]
    address = wait_ready(start_gateway(start, workers))
    console = open_console(address, "live")
    ended = time.monotonic() + 90
    with ThreadPoolExecutor(6) as clients:
        for seed in range(6):
            clients.submit(_keep_busy, address, seed, ended)
        time.sleep(85)
        console.driver.save_screenshot(str(IMAGES / "console-live.png"))
    post(address, "/v2/models/ensemble/generate", {"text_input": "hello", "max_tokens": 9})
    question = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}
    for wrong in ({"max_tokens": -1}, {"model": "nobody"}, {}):
        post(address, "/v1/chat/completions", {**question, **wrong})
    console.open("requests")
    console.wait("they are listed", lambda: "no such model" in console.one("#requests").text)
    console.driver.save_screenshot(str(IMAGES / "console-requests.png"))


def _keep_busy(address: str, seed: int, until: float) -> None:
    """Asks until then, for answers of different lengths and with pauses between them."""
    lengths = random.Random(seed)
    while time.monotonic() < until:
        length, tokens = lengths.randint(1, 40), lengths.randint(50, 900)
        body = {"prompt": "Hi " * length, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        post(address, "/v1/completions", body)
        time.sleep(lengths.uniform(0, 4))
