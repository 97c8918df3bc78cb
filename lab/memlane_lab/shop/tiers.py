"""The three tiers' programs in guests: each can be started (again), looked at, and asked for its log."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memlane_lab.common.wait import until
from memlane_lab.guests import Guest
from memlane_lab.guests.control import CommandFailed, Running
from memlane_lab.images.shop import DATABASE_USER, PLACE

_WEB, _APPLICATION, _DATABASE = 80, 8000, 5432
_PATIENCE = 60.0
"""Seconds that a tier may take to serve, on a busy machine too."""
_LOGS = "/run/shop"
_FILES = 8192
"""Connections that the application may have open."""


@dataclass(frozen=True)
class Place:
    """A guest, and where others reach it."""

    guest: Guest
    address: str


@dataclass(frozen=True)
class Work:
    """The database's counters so far."""

    questions: int
    seconds: float


@dataclass(frozen=True)
class Size:
    """How large the shop was made."""

    items: int
    customers: int


class Tiers:
    """Web server, application and database of one shop; their guests may be one and the same."""

    def __init__(self, web: Place, application: Place, database: Place) -> None:
        """Nothing runs yet."""
        self.web, self.application, self.database = web, application, database
        self._running: dict[str, Running] = {}

    def start(self) -> None:
        """Starts all, from the back to the front, and waits until each serves."""
        self.start_database()
        self.start_application()
        self.start_web()

    def start_database(self) -> None:
        """Unpacks the data into the guest's memory and serves them."""
        guest = self.database.guest
        unpack = (
            f"mkdir -p /run/shop/db && tar -xf /{PLACE}/database/data.tar -C /run/shop/db && chmod 700 /run/shop/db"
        )
        own = f"chown -R {DATABASE_USER}:{DATABASE_USER} /run/shop/db && chmod 777 /run/shop"
        guest.run(f"{unpack} && {own}", timeout=_PATIENCE).check()
        as_its_user = ["setpriv", f"--reuid={DATABASE_USER}", f"--regid={DATABASE_USER}", "--clear-groups"]
        serve = ["/lib/postgresql/bin/postgres", "-D", "/run/shop/db", "-k", "/run/shop"]
        self._serve("database", guest, [*as_its_user, *serve])
        ready = "/lib/postgresql/bin/pg_isready -q -h /run/shop -U shop"
        self._await("database", lambda: guest.run(ready).status == 0)

    def start_application(self) -> None:
        """Serves pages out of the database."""
        guest = self.application.guest
        guest.run(f"mkdir -p {_LOGS}").check()
        database = f"host={self.database.address} port={_DATABASE} user=shop dbname=shop"
        listen = f"0.0.0.0:{_APPLICATION}"
        running = self._serve(
            "application",
            guest,
            [
                "sh",
                "-c",
                f'ulimit -n {_FILES} && exec memlane-shop "$@"',
                "sh",
                listen,
                database,
                f"{_LOGS}/application.log",
            ],
        )
        running.wait_for_output("serves on", timeout=_PATIENCE)

    def start_web(self) -> None:
        """Serves the application's pages, and pictures."""
        guest = self.web.guest
        guest.run(f"mkdir -p {_LOGS}").check()
        stated = guest.get(f"/{PLACE}/web/nginx.conf").decode()
        stated = stated.replace("@LISTEN@", str(_WEB)).replace(
            "@APPLICATION@", f"{self.application.address}:{_APPLICATION}"
        )
        guest.put(f"{_LOGS}/nginx.conf", stated.encode())
        self._serve("web server", guest, ["nginx", "-c", f"{_LOGS}/nginx.conf", "-g", "daemon off;", "-e", "stderr"])
        guest.wait_listening(_WEB, timeout=_PATIENCE)

    def size(self) -> Size:
        """How large the shop was made."""
        items, customers = self.database.guest.get(f"/{PLACE}/database/size").decode().split()
        return Size(int(items), int(customers))

    def web_log(self) -> str:
        """A line for each page: request id, status, seconds, seconds of the application, seconds to connect, bytes."""
        self.web.guest.run("kill -USR1 $(cat /run/shop/nginx.pid)").check()  # writes its buffered lines
        return self.web.guest.get(f"{_LOGS}/web.log").decode()

    def application_log(self) -> str:
        """A line for each page: see `lab/shop/application/src/record.rs`."""
        return self.application.guest.get(f"{_LOGS}/application.log").decode()

    def work(self) -> Work:
        """How much the database has done since its start."""
        question = "SELECT coalesce(sum(calls), 0), coalesce(sum(total_exec_time), 0) FROM pg_stat_statements"
        psql = f'/lib/postgresql/bin/psql -h /run/shop -U shop -d shop -X -A -t -F " " -c "{question}"'
        calls, milliseconds = self.database.guest.run(psql).check().stdout.split()
        return Work(int(calls), float(milliseconds) / 1e3)

    def said(self) -> Mapping[str, str]:
        """The logs of the tiers, by their names."""
        return {name: running.stdout + running.stderr for name, running in self._running.items()}

    def _serve(self, name: str, guest: Guest, command: list[str]) -> Running:
        self._running[name] = guest.spawn(command)
        return self._running[name]

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        running = self._running[name]

        def serving() -> bool:
            if running.ended:
                raise CommandFailed(f"the shop's {name} has ended: {running.stderr[-1000:] or running.stdout[-1000:]}")
            return ready()

        until(serving, timeout=_PATIENCE, what=f"the shop's {name} to serve")
