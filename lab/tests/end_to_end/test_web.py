"""The web page in a real browser: its content, its use by keyboard and on a phone, and that names are text alone."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memlane_lab.host import rust
from tests.browser import Browser, wait_until

pytestmark = pytest.mark.real
NETWORK = """workers = 2
control = "control"
[[port]]
name = "web"
segment = "front"
vhost-user = "web.sock"
[[port]]
name = "db"
segment = "front"
vhost-user = "db.sock"
[[port]]
name = "a-name-that-is-as-long-as-a-name-of-a-port-may-be-64-characters-"
segment = "storage"
null = true
"""
TOKEN = "0123456789abcdef0123456789abcdef"
EVIL = "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>"
POLLED = "Number(document.documentElement?.dataset.polls) >= 3"
NO_WIDER = "document.documentElement.scrollWidth <= innerWidth"


@contextmanager
def _network(folder: Path, *arguments: str) -> Iterator[str]:
    """A network, and the address of its page."""
    memlane = rust.program("memlane", named_by="MEMLANE")
    assert memlane, "no memlane found: run make build"
    (folder / "net.toml").write_text(NETWORK)
    process = subprocess.Popen(
        [memlane, "up", "net.toml", "--web", "127.0.0.1:0", *arguments],
        cwd=folder,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert "page at " in line, line
        yield line.split("page at ")[1].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


@contextmanager
def _traffic(folder: Path) -> Iterator[None]:
    """Two guests that send each other frames."""
    rig = rust.program("memlane-rig", named_by="MEMLANE_RIG")
    assert rig, "no memlane-rig found: run make build"
    ports = [word for name in ("web", "db") for word in ("--port", f"vu:{folder / name}.sock")]
    command = [str(rig), "blast", *ports, "--rate-pps", "200", "--seconds", "600"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    (tmp_path / "browser").mkdir()
    with Browser(tmp_path / "browser") as browser:
        browser.resize(1280, 800)
        yield browser


def _row(name: str) -> str:
    return f"document.querySelector('a[href=\"#/port/{name}\"]')?.closest('.row')"


def test_the_topology_shows_ports_states_and_rates(tmp_path: Path, browser: Browser) -> None:
    with _network(tmp_path) as url, _traffic(tmp_path):
        browser.open(url)
        browser.wait(f"{_row('web')}?.classList.contains('running')", "the port runs")
        rates = f"[...{_row('web')}.querySelectorAll('.rate')].map(text => text.textContent)"
        browser.wait(f"{rates}.every(text => /^(TX|RX) [0-9.]+ k?bit/.test(text))", "rates are on both lines")
        assert browser.run("[...document.querySelectorAll('h2')].map(heading => heading.textContent)")[:2] == [
            "front 2 ports",
            "storage 1 port",
        ]
        assert "3 ports · 3 running" in browser.run("document.getElementById('summary').textContent")
        browser.wait("document.querySelectorAll('.events li').length >= 3", "events are shown")
        assert browser.run("document.title") == "net · memlane"
        browser.run("location.hash = '#/port/web'")
        browser.wait("document.querySelector('dd.state')?.textContent === 'running'", "the port's page")
        browser.wait(
            "document.querySelector('polyline.tx').getAttribute('points').split(' ').length >= 2", "a rate is drawn"
        )
        browser.wait("document.querySelector('.addresses li')", "its MAC address")
        assert "need a token" in browser.run("document.getElementById('capture').textContent")
        assert browser.faults == []


def test_the_keyboard_alone_reaches_a_port(tmp_path: Path, browser: Browser) -> None:
    with _network(tmp_path) as url:
        browser.open(url)
        browser.wait(POLLED, "the page is there")
        browser.press("/")
        assert browser.run("document.activeElement.id") == "filter"
        for key in "db":
            browser.press(key)
        browser.wait("document.querySelectorAll('.row').length === 1", "the filter leaves one port")
        browser.press("Tab")
        assert browser.run("document.activeElement.getAttribute('href')") == "#/port/db"
        # The focus outlives the next report.
        browser.run("delete document.documentElement.dataset.polls")
        browser.wait(POLLED, "more reports")
        browser.press("Enter")
        browser.wait("document.getElementById('port-name')?.textContent === 'db'", "its page opens")
        browser.press("Escape")
        browser.wait("document.getElementById('filter')", "the network's page is back")
        browser.press("e")
        browser.wait("document.querySelector('h2')?.textContent === 'Events'", "the events")


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_all_without_scrolling_aside(tmp_path: Path, browser: Browser, *, dark: bool) -> None:
    browser.resize(390, 844, dark=dark, phone=True)
    with _network(tmp_path) as url:
        for page in ("", "#/port/web", "#/events"):
            browser.open("about:blank")
            browser.open(url + page)
            browser.wait(POLLED, "the page is there")
            assert browser.run(NO_WIDER), page
            small = "[...document.querySelectorAll('nav a, button, input:not([type=checkbox])')]"
            high = f"{small}.filter(one => one.clientHeight).every(one => one.getBoundingClientRect().height >= 38)"
            assert browser.run(high), "fingers hit what can be pressed"
        back = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
        assert (browser.run(back)[0] < 64) == dark


def test_names_and_texts_of_the_network_are_no_markup(tmp_path: Path, browser: Browser) -> None:
    """Names of ports are letters and digits; front ends name their programs. Here each text of a report is markup."""
    with _network(tmp_path) as url:
        browser.ask("Page.addScriptToEvaluateOnNewDocument", source=_with_evil_reports(EVIL))
        browser.open(url)
        browser.wait(POLLED, "the page is there")
        browser.wait(f"document.body.textContent.includes({json.dumps(EVIL)})", "names are shown")
        browser.run(f"location.hash = '#/port/' + encodeURIComponent({json.dumps(EVIL)})")
        browser.wait(f"document.getElementById('port-name')?.textContent === {json.dumps(EVIL)}", "its page")
        browser.run("delete document.documentElement.dataset.polls")
        browser.wait(POLLED, "more reports")
        browser.run("location.hash = '#/events'")
        browser.wait("document.querySelector('h2')?.textContent === 'Events'", "the events")
        assert browser.run("document.querySelectorAll('main img, main script').length") == 0
        assert browser.run("document.title") == f"{EVIL} · memlane"
        assert "1 port · " in browser.run("document.getElementById('summary').textContent")
        # The network has no segment of that name.
        assert [fault for fault in browser.faults if "404" not in fault] == []


def _with_evil_reports(evil: str) -> str:
    """A script that puts `evil` in the place of each text of the network's reports."""
    return f"""
      const evil = {json.dumps(evil)};
      const known = ["state", "event"];
      const worse = (value, key) =>
        typeof value === "string" && !known.includes(key) ? evil
        : Array.isArray(value) ? value.map(one => worse(one, key))
        : value && typeof value === "object"
          ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, worse(one, key)]))
        : value;
      const plain = window.fetch;
      window.fetch = async (path, ...more) => {{
        const response = await plain(path, ...more);
        if (!String(path).startsWith("v1/network")) return response;
        const report = worse(await response.json(), "");
        const texts = {{cause: evil, advice: evil, drops: {{[evil]: 7}}}};
        report.ports = report.ports.slice(0, 1).map(port => ({{...port, ...texts}}));
        return new Response(JSON.stringify(report));
      }};
    """


def test_scripts_in_the_page_are_refused_by_its_policy(tmp_path: Path, browser: Browser) -> None:
    with _network(tmp_path) as url:
        browser.open(url)
        browser.wait(POLLED, "the page is there")
        browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x: onerror=\"window.ran = true\">')")
        browser.run(
            "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = true'}))"
        )
        browser.wait("document.querySelector('img').complete", "the image has failed")
        assert browser.run("window.ran") is None
        assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
        assert any("Content Security Policy" in fault for fault in browser.faults)


def test_a_token_lets_a_port_be_disabled_and_captured(tmp_path: Path, browser: Browser) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    with _network(tmp_path, "--web-token", "token") as url, _traffic(tmp_path):
        browser.open(url)
        browser.wait("document.getElementById('login')?.hidden === false", "the page asks for the token")
        _give(browser, "another-token-of-enough-bytes")
        browser.wait("document.getElementById('wrong').hidden === false", "a wrong token is told")
        _give(browser, TOKEN)
        browser.wait(
            "document.getElementById('login').hidden && document.querySelector('.row')", "the network is shown"
        )
        browser.run("location.hash = '#/port/web'")
        browser.wait("document.querySelector('dd.state')?.textContent === 'running'", "the port's page")
        browser.ask("Page.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        browser.run("document.getElementById('seconds').value = 2")
        browser.run("document.querySelector('#capture button').click()")
        browser.wait("/saved as/.test(document.querySelector('#capture').textContent)", "the capture is saved")
        file = downloads / "web.pcapng"
        wait_until(lambda: file.exists() and file.stat().st_size > 1000, "the browser has written the file")
        assert file.read_bytes()[:4] == b"\x0a\x0d\x0d\x0a", "the section header of pcapng"
        toggle = "[...document.querySelectorAll('button')].find(button => /able the port/.test(button.textContent))"
        assert browser.run(f"{toggle}.textContent") == "Disable the port"
        browser.run(f"{toggle}.click()")
        browser.wait("document.querySelector('dd.state')?.textContent === 'disabled'", "the port is disabled")
        browser.run(f"{toggle}.click()")
        browser.wait("document.querySelector('dd.state')?.textContent === 'running'", "the port is enabled")


def _give(browser: Browser, token: str) -> None:
    browser.run(f"document.getElementById('token').value = {json.dumps(token)}")
    browser.run("document.getElementById('login').requestSubmit()")
