"""Headless Chromium for tests: opens a page, runs script in it, moves mouse and keys, takes pictures.

Speaks the DevTools protocol over the browser's own pipe (file descriptors 3 and 4, messages end in a
zero byte), so that it needs the standard library alone and no port.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import time


def program() -> str | None:
    """The browser, or None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page of one browser; a context manager."""

    def __init__(self, profile: pathlib.Path, width: int = 1360, height: int = 1000, seconds: float = 120):
        self.seconds, self.next_id, self.buffer, self.events = seconds, 0, b"", []
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()

        def descriptors():
            # Through high numbers, so that neither is overwritten by the other.
            high = os.dup2(to_browser, 103), os.dup2(from_browser, 104)
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-extensions", "--disable-background-networking", "--force-device-scale-factor=1",
             f"--user-data-dir={profile}", f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"],
            close_fds=False, preexec_fn=descriptors, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        try:
            self.prepare(width, height)
        except BaseException:
            self.__exit__()
            raise

    def prepare(self, width: int, height: int) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except Exception:  # it hangs or has gone: what matters is that it ends
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.into)

    def call(self, method: str, **parameters) -> dict:
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.seconds
        while True:
            answer = self.read(deadline)
            if answer.get("id") != self.next_id:
                self.events.append(answer)
                continue
            assert "error" not in answer, f"{method}: {answer['error']}"
            return answer["result"]

    def read(self, deadline: float) -> dict:
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.into], [], [], left)[0], "the browser does not answer"
            part = os.read(self.into, 1 << 20)
            assert part, "the browser has ended"
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def open(self, path: pathlib.Path) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + self.seconds
        while not self.run("document.readyState === 'complete' && location.href !== 'about:blank'"):
            assert time.monotonic() < deadline, "the page does not load"
            time.sleep(0.05)

    def run(self, script: str):
        """The script's value; promises are waited for; what it throws fails the test."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, json.dumps(result["exceptionDetails"])[:2000]
        return result["result"].get("value")

    def frame(self) -> None:
        """Until what was asked for has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more) -> None:
        """mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, name: str, **more) -> None:
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "Enter": 13, "Tab": 9}.get(name, 0)
        text = {"text": name} if len(name) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, windowsVirtualKeyCode=code, **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code, **more)

    def dark(self, on: bool) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def picture(self, path: pathlib.Path, whole: bool = True) -> pathlib.Path:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def troubles(self) -> list[str]:
        """Errors of the page's script, and requests for anything but the page itself."""
        found = []
        for event in self.events:
            method, what = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(what["exceptionDetails"])[:500])
            elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
                found.append(what["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not what["request"]["url"].startswith(("file:", "data:")):
                found.append("asks for " + what["request"]["url"])
        return found
