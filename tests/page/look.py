# SPDX-License-Identifier: Apache-2.0
"""look.py BROWSER AXE URL PICTURE: opens a page in headless chromium and takes a picture of it. axe-core
(AXE is its file) looks for what keeps people from using the page, and everything that the browser
puts on its console as an error is counted. Exits with 1 if there is anything of both. It speaks the
browser's own protocol over a websocket, so that no driver is needed."""
import argparse
import base64
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time


class Browser:
    """A headless chromium with one page."""

    def __init__(self, program, limit):
        self.limit, self.nr, self.wrong = limit, 0, []
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = pathlib.Path(self.folder.name, "DevToolsActivePort")
        while not port.exists() or len(port.read_text().splitlines()) < 2:
            self.in_time("the browser does not start")
            time.sleep(0.05)
        number, path = port.read_text().splitlines()
        self.socket = socket.create_connection(("127.0.0.1", int(number)), timeout=60)
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{number}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            f"{base64.b64encode(os.urandom(16)).decode()}\r\n\r\n".encode())
        self.left = b""
        while b"\r\n\r\n" not in self.left:
            self.left += self.socket.recv(65536)
        self.left = self.left.split(b"\r\n\r\n", 1)[1]
        self.session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target,
                                flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(domain + ".enable")

    def in_time(self, what):
        """Ends the program if it has taken too long."""
        if time.monotonic() > self.limit:
            sys.exit(f"look: {what}")

    def bytes(self, n):
        """So many bytes of the websocket."""
        while len(self.left) < n:
            more = self.socket.recv(1 << 20)
            if not more:
                sys.exit("look: the browser is gone")
            self.left += more
        out, self.left = self.left[:n], self.left[n:]
        return out

    def message(self):
        """The next message."""
        whole = b""
        while True:
            head, size = self.bytes(2)
            size &= 0x7F
            if size == 126:
                size = struct.unpack(">H", self.bytes(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.bytes(8))[0]
            whole += self.bytes(size)
            if head & 0x80:
                return json.loads(whole)

    def ask(self, method, **params):
        """One request, and what came on the console until its answer."""
        self.nr += 1
        body = {"id": self.nr, "method": method, "params": params}
        if self.session:
            body["sessionId"] = self.session
        data = json.dumps(body).encode()
        mask = os.urandom(4)
        head = struct.pack(">BBQ", 0x81, 0xFF, len(data)) + mask
        self.socket.sendall(head + bytes(c ^ mask[i % 4] for i, c in enumerate(data)))
        while True:
            self.in_time(f"no answer to {method}")
            said = self.message()
            about, value = said.get("method"), said.get("params", {})
            if about == "Runtime.exceptionThrown":
                self.wrong.append(json.dumps(value["exceptionDetails"])[:400])
            elif about == "Log.entryAdded" and value["entry"]["level"] == "error":
                self.wrong.append(value["entry"]["text"] + " " + value["entry"].get("url", ""))
            elif about == "Runtime.consoleAPICalled" and value["type"] in ("error", "assert"):
                self.wrong.append(json.dumps(value["args"])[:400])
            elif said.get("id") == self.nr:
                if "error" in said:
                    sys.exit(f"look: {method}: {said['error']}")
                return said["result"]

    def js(self, text):
        """The value of an expression, which may be a promise."""
        said = self.ask("Runtime.evaluate", expression=text, awaitPromise=True,
                        returnByValue=True)
        if "exceptionDetails" in said:
            sys.exit(f"look: {text[:80]}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def until(self, text):
        """Waits for an expression to be true."""
        while not self.js(text):
            self.in_time(f"never true: {text}; there is: {self.js('document.body.innerText')}")
            time.sleep(0.1)

    def close(self):
        """Ends the browser."""
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def violations(browser, axe):
    """What axe-core finds, one text each."""
    browser.js(pathlib.Path(axe).read_text(encoding="utf-8") + ";0")
    found = browser.js("axe.run().then(r => r.violations.map(v => v.id + ': ' + v.help + ': ' + "
                       "v.nodes.map(n => n.html.slice(0, 120)).slice(0, 3).join(' | ')))")
    wide = browser.js("document.documentElement.scrollWidth > innerWidth")
    return found + (["wider than the window"] if wide else [])


def main():
    """Takes the picture."""
    p = argparse.ArgumentParser()
    for name in ("browser", "axe", "url", "picture"):
        p.add_argument(name)
    p.add_argument("--size", default="1280x900")
    p.add_argument("--dark", action="store_true")
    p.add_argument("--until", default="true", help="what is true when the picture is taken")
    p.add_argument("--kill", type=int, help="the daemon, once the page shows it")
    p.add_argument("--limit", type=float, default=120)
    o = p.parse_args()
    width, height = (int(x) for x in o.size.split("x"))
    browser = Browser(o.browser, time.monotonic() + o.limit)
    try:
        browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                    deviceScaleFactor=1, mobile=width < 600)
        browser.ask("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if o.dark else "light"}])
        browser.ask("Page.navigate", url=o.url)
        browser.until("document.getElementById('who')?.textContent.length > 0")
        if o.kill:
            os.kill(o.kill, signal.SIGKILL)
            browser.until("document.body.classList.contains('stale')")
        browser.until(o.until)
        wrong = [f"axe: {x}" for x in violations(browser, o.axe)]
        # While the daemon is gone each question leaves a line on the console.
        wrong += [f"console: {x}" for x in browser.wrong
                  if not (o.kill and "ERR_CONNECTION_REFUSED" in x)]
        shot = browser.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        pathlib.Path(o.picture).write_bytes(base64.b64decode(shot["data"]))
    finally:
        browser.close()
    for x in wrong:
        print(f"{pathlib.Path(o.picture).name}: {x}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
