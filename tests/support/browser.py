"""A headless Chromium for tests, driven through chromedriver by the WebDriver protocol; it needs no library."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from patience import PATIENCE

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_PORT = re.compile(r"started successfully on port (\d+)")


def why_no_browser() -> str | None:
    """Why there is none; None where there is one."""
    if shutil.which("chromedriver") is None:
        return "chromedriver is not installed (Debian: chromium-driver)"
    return None if any(map(shutil.which, CHROMIUM)) else "Chromium is not installed"


class Browser:
    """A browser with one page."""

    def __init__(self, driver: str) -> None:
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            "binary": next(path for path in map(shutil.which, CHROMIUM) if path),
        }
        wanted = {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": options,
        }
        self._driver, self._session = driver, ""
        self._session = f"/session/{self._ask('/session', {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"

    def _ask(self, path: str, content: dict[str, Any] | None, method: str = "POST") -> Any:  # noqa: ANN401 - JSON
        data = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self._driver}{self._session}{path}", data, headers, method=method)  # noqa: S310 - loopback
        with urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            return json.load(answer)["value"]

    def close(self) -> None:
        """End it."""
        self._ask("", None, "DELETE")

    def look(self, width: int, *, dark: bool = False, media: str = "") -> None:
        """Set the width of the window in pixels, the colours that the user prefers, and the medium."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.command("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})

    def open(self, page: Path) -> None:
        """Open a report."""
        self._ask("/url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:  # noqa: ANN401 - what it returns
        """The value that a script returns in the page."""
        return self._ask("/execute/sync", {"script": script, "args": []})

    def command(self, name: str, values: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """A command of Chromium's DevTools."""
        return self._ask("/goog/cdp/execute", {"cmd": name, "params": values})

    def messages(self) -> list[str]:
        """What has been said on the console since this was last asked."""
        return [entry["message"] for entry in self._ask("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """What has been asked for since this was last asked."""
        events = [json.loads(entry["message"])["message"] for entry in self._ask("/se/log", {"type": "performance"})]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [event["request"]["url"] for event in sent]

    def printed(self) -> bytes:
        """The page as PDF, on A4."""
        return base64.b64decode(self._ask("/print", {"page": {"width": 21.0, "height": 29.7}}))

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        taken = self.command("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def started_browser() -> Generator[Browser]:
    """A browser, which ends with the block."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with subprocess.Popen(
        ["chromedriver", "--port=0"],  # noqa: S607 - found by `why_no_browser`
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as driver:
        try:
            assert driver.stdout is not None
            port = next(found[1] for line in driver.stdout if (found := _PORT.search(line)))
            browser = Browser(f"http://127.0.0.1:{port}")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
