"""A headless Chromium that tests drive by its DevTools protocol, over a pipe: no driver and no web socket is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT = 60.0


class Browser:
    """One page in a browser of its own; `faults` are its uncaught errors and requests that its policy refuses."""

    def __init__(self, folder: Path) -> None:
        browser = shutil.which("chromium")
        assert browser, "chromium is missing: run `lab/install-packages test`"
        (its_in, self._to), (self._from, its_out) = os.pipe(), os.pipe()
        command = [
            *(
                "bash",
                "-c",
                f'exec "$@" 3<&{its_in} 4>&{its_out}',
                "bash",
                browser,
                "--headless",
                "--remote-debugging-pipe",
            ),
            *("--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run"),
            *(f"--user-data-dir={folder / 'profile'}", "about:blank"),
        ]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(its_in, its_out), stdin=quiet, stdout=quiet, stderr=quiet)
        os.close(its_in)
        os.close(its_out)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.faults: list[str] = []
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser gives no answer"
            part = os.read(self._from, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        given = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.faults.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        done = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, script: str, what: str) -> None:
        """Waits until the expression is true."""
        wait_until(lambda: self.run(f"Boolean({script})"), what)

    def open(self, url: str) -> None:
        """Opens a page."""
        self.ask("Page.navigate", url=url)

    def resize(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Makes the window so large; a phone's has touch."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Presses and releases a key."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Tab": 9, "Escape": 27}
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes.get(key, 0), **more)

    def picture(self, path: Path) -> None:
        """Writes a screenshot."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Waits until `condition` is true, and returns its value."""
    deadline = time.monotonic() + TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)
    return value
