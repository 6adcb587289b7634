"""A real Chromium on the console. Owns how it is started and how things are found; what is expected is the
tests'.

Every wait polls for what is meant. Debian's packages `chromium` and `chromium-driver` are used:
`tools/install-system-packages browser` installs them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from support.processes import wait_until

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
#: No look at the network, and no sandbox of its own: CI runs as root in one.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--window-size=1280,860",
)


class Console:
    """The page of the gateway at `address`, in a tab."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address

    def open(self, page: str = "chat") -> None:
        self.driver.get(f"http://{self.address}/#{page}")
        self.driver.refresh()
        self.wait(f"{page} is shown", lambda: self.all(f"#{page.partition('/')[0]}:not([hidden])"))

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def click(self, text: str, within: str = "body") -> None:
        """Presses the last visible button with this text."""
        buttons = [button for button in self.all(f"{within} button") if button.text == text]
        assert buttons, f"no button `{text}`"
        buttons[-1].click()

    def set(self, name: str, value: str) -> None:
        """Fills a control of the settings."""
        control = self.one(f"[name={name}]")
        self.driver.execute_script("arguments[0].closest('details').open = true", control)
        control.clear()
        control.send_keys(value)

    def set_more(self, fields: dict[str, Any]) -> None:
        """Fills the control of fields that have no control of their own."""
        self.set('""', json.dumps(fields))

    def ask(self, text: str) -> None:
        """Sends a message, once a model can be chosen."""
        self.wait("there is a model", lambda: self.all(".column select option"))
        self.one(".composer textarea").send_keys(text, Keys.ENTER)

    def answers(self) -> list[str]:
        """The texts of the answers that are complete."""
        return [body.text for body in self.all(".message.assistant[aria-busy=false] .body")]

    def wait_answers(self, count: int) -> list[str]:
        self.wait(f"there are {count} answers", lambda: len(self.answers()) == count)
        return self.answers()

    def wait(self, what: str, is_so: Callable[[], Any]) -> None:
        """Polls; an element that was replaced meanwhile is looked for again."""

        def found() -> bool:
            with contextlib.suppress(StaleElementReferenceException):
                return bool(is_so())
            return False

        try:
            wait_until(what, found)
        except AssertionError as error:
            raise AssertionError(f"{error}; the page has:\n{self.one('body').text}") from None

    def messages(self) -> list[str]:
        """What the browser has complained of: refused scripts and styles, errors of scripts."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if "favicon" not in entry["message"]]

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def violations(self, axe: str) -> list[str]:
        """What axe-core finds on the page as it is now."""
        self.driver.execute_script(axe)
        run = "axe.run().then(arguments[0], (error) => arguments[0]({error: String(error)}))"
        found = self.driver.execute_async_script(run)
        assert "error" not in found, found["error"]
        assert len(found["passes"]) > 10
        return [f"{one['id']}: {node['html']}" for one in found["violations"] for node in one["nodes"]]


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Chromium with an empty profile."""
    assert CHROMIUM is not None
    assert DRIVER is not None
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
