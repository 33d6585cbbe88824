"""Leases for one process among many, held by `tenure with`.

    with tenure.lease("nightly-report") as lead:      # waits until this process leads
        while lead.held():                            # a local clock read
            write_report(fence=lead.token)            # compare (term, step) where it is written

`tenure with --store URL -- python app.py` starts the program and sets TENURE_SOCKET. A lease belongs to this
process: it is given back when the block ends or the process does. A process that goes on for longer than its
stop budget after a lease was lost is killed.
"""

import asyncio
import json
import os
import socket
import threading
import time
import uuid
import weakref
from typing import NamedTuple, Optional

__all__ = ["AsyncLease", "Held", "Lease", "Lost", "TenureError", "Token", "alease", "leader", "lease"]

_BOOT = time.CLOCK_BOOTTIME
_clock = time.clock_gettime_ns
#: How long to pause before events are asked for again after a connection broke.
_AGAIN = 0.05


class TenureError(Exception):
    """What tenure refused: `code` is a stable word, the text a sentence."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


class Held(TenureError):
    """Another holds the lease."""


class Lost(TenureError):
    """The lease was lost while it was needed; `code` is the reason."""


class Token(NamedTuple):
    """The fencing token: compared as two numbers, the term first."""

    term: int
    step: int


def _path() -> str:
    path = os.environ.get("TENURE_SOCKET")
    if not path:
        message = "TENURE_SOCKET is not set: start this program by `tenure with --store URL -- …`"
        raise TenureError("no_socket", message)
    return path


def _gone(error: Exception) -> TenureError:
    return TenureError("no_tenure", f"tenure does not answer: {error!r}")


def _request(method: str, path: str, body: Optional[dict]) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    # As HTTP/1.0 the answer ends with the connection. One connection for each request: after a fork nobody speaks
    # in another's name.
    return f"{method} {path} HTTP/1.0\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


def _status(line: bytes) -> int:
    if not line:
        raise ConnectionResetError("the connection broke")
    return int(line.split(b" ", 2)[1])


def _checked(status: int, body: bytes) -> dict:
    answer = json.loads(body)
    if status < 300:
        return answer
    error = answer["error"]
    kind = {"held": Held, "lost": Lost}.get(error["code"], TenureError)
    raise kind(error["code"], error["message"])


def _question(name: str, wait: Optional[float], note: Optional[str]) -> dict:
    wait_ms = None if wait is None else max(0, round(wait * 1000))
    # With its key a request can be repeated if its answer got lost.
    return {"name": name, "wait_ms": wait_ms, "note": note, "key": uuid.uuid4().hex}


class _Followed:
    """What both kinds of leases are: a lease as tenure last told it."""

    def __init__(self, told: dict):
        self.id: str = told["id"]
        self.name: str = told["name"]
        self.token = Token(told["token"]["term"], told["token"]["step"])
        #: The note that stood in the record when the lease was won.
        self.note: Optional[str] = told["note"]
        #: Why it was lost; None while it is held.
        self.reason: Optional[str] = None
        self._deadline: int = told["deadline_ns"]
        self._released = False
        _alive.add(self)

    def held(self) -> bool:
        """Whether nobody else can hold the lease now: a clock read, no lock, no I/O."""
        return _clock(_BOOT) < self._deadline

    def check(self) -> None:
        """Raises Lost unless the lease is held."""
        if loss := self._loss():
            raise loss

    def _loss(self) -> Optional[Lost]:
        if self.held():
            return None
        self._end("expired")
        reason = self.reason or "released"
        return Lost(reason, f"the lease {self.name} is not held any more: {reason}")

    def _end(self, reason: str) -> None:
        self._deadline = 0
        if not self._released and self.reason is None:
            self.reason = reason

    def _take_in(self, line: bytes) -> bool:
        """Whether the lease is still held after this event."""
        told = json.loads(line)
        if told["event"] not in ("held", "renewed"):
            self._end(told["lease"]["reason"] or "released")
        elif self.reason is None and not self._released:
            self._deadline = told["lease"]["deadline_ns"]
        return self._deadline > 0

    def _left(self) -> float:
        """How long to wait for the next event: tenure may be stopped."""
        return max(0, self._deadline - _clock(_BOOT)) / 1e9 + 0.001

    def _is_over(self, error: Exception) -> bool:
        """Whether what went wrong with the events ends the lease; a broken connection does not."""
        if isinstance(error, TenureError) and error.code == "no_lease":
            self._end("released")
        return self._loss() is not None


_alive: "weakref.WeakSet[_Followed]" = weakref.WeakSet()


def _forked() -> None:
    # Nobody follows events in the child; it asks for leases of its own.
    for one in list(_alive):
        one._end("forked")


os.register_at_fork(after_in_child=_forked)


def _open(method: str, path: str, body: Optional[dict] = None):
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_path())
        connection.sendall(_request(method, path, body))
        answer = connection.makefile("rb")
        status = _status(answer.readline())
        while answer.readline().strip():
            pass
        return connection, answer, status
    except BaseException:
        connection.close()
        raise


def _call(method: str, path: str, body: Optional[dict] = None) -> dict:
    try:
        connection, answer, status = _open(method, path, body)
        with connection, answer:
            return _checked(status, answer.read())
    except OSError as error:
        raise _gone(error) from error


def leader(name: str) -> Optional[dict]:
    """Who holds a lease (owner, token, pid if it is a process of this command); None: nobody."""
    try:
        return _call("GET", f"/v1/leader/{name}")
    except TenureError as error:
        if error.code == "nobody":
            return None
        raise


class Lease(_Followed):
    """A lease that this process holds. Leaving a `with` block gives it back, and raises Lost if it was lost."""

    def __init__(self, told: dict):
        super().__init__(told)
        self._over = threading.Event()
        threading.Thread(target=self._follow, name=f"tenure {self.name}", daemon=True).start()

    def _follow(self) -> None:
        error: Exception = EOFError()
        while not self._is_over(error):
            try:
                connection, answer, status = _open("GET", f"/v1/leases/{self.id}/events")
                with connection, answer:
                    if status >= 300:
                        _checked(status, answer.read())
                    connection.settimeout(self._left())
                    while (line := answer.readline()) and self._take_in(line):
                        connection.settimeout(self._left())
            except (OSError, ValueError, TenureError) as caught:
                error = caught
            time.sleep(_AGAIN if self.held() else 0)
        self._over.set()

    def wait_lost(self, timeout: Optional[float] = None) -> Optional[str]:
        """Waits until the lease is lost or given back, and says why; None: not within the time-out."""
        return (self.reason or "released") if self._over.wait(timeout) else None

    def write_note(self, note: str) -> None:
        """Replaces the note in the lease's record; returns when it stands."""
        _call("PUT", f"/v1/leases/{self.id}/note", {"note": note})

    def release(self) -> None:
        """Gives the lease back: what it guarded has ended."""
        if self._released:
            return
        self._released, self._deadline = True, 0
        try:
            _call("DELETE", f"/v1/leases/{self.id}")
        except TenureError as error:
            if error.code not in ("no_lease", "no_tenure"):
                raise

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind, error, trace) -> None:
        loss = None if self._released else self._loss()
        self.release()
        if loss and error is None:
            raise loss


def lease(name: str, wait: Optional[float] = None, note: Optional[str] = None) -> Lease:
    """Waits until this process holds the lease; at most `wait` seconds (0: tries once), then raises Held."""
    question = _question(name, wait, note)
    try:
        return Lease(_call("POST", "/v1/leases", question))
    except TenureError as error:
        if not isinstance(error.__cause__, ConnectionResetError):
            raise
    return Lease(_call("POST", "/v1/leases", question))


async def _aopen(method: str, path: str, body: Optional[dict] = None):
    reader, writer = await asyncio.open_unix_connection(_path())
    try:
        writer.write(_request(method, path, body))
        status = _status(await reader.readline())
        while (await reader.readline()).strip():
            pass
        return reader, writer, status
    except BaseException:
        writer.close()
        raise


async def _acall(method: str, path: str, body: Optional[dict] = None) -> dict:
    try:
        reader, writer, status = await _aopen(method, path, body)
        try:
            return _checked(status, await reader.read())
        finally:
            writer.close()
    except OSError as error:
        raise _gone(error) from error


class AsyncLease(_Followed):
    """A lease in asyncio: `async with tenure.alease("x") as lead:`. A loss cancels the block, which raises Lost."""

    def __init__(self, told: dict):
        super().__init__(told)
        self._over = asyncio.Event()
        self._task: Optional[asyncio.Task] = None
        self._cancelled = False
        self._follower = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        error: Exception = EOFError()
        while not self._is_over(error):
            try:
                reader, writer, status = await _aopen("GET", f"/v1/leases/{self.id}/events")
                try:
                    if status >= 300:
                        _checked(status, await reader.read())
                    while line := await asyncio.wait_for(reader.readline(), self._left()):
                        if not self._take_in(line):
                            break
                finally:
                    writer.close()
            except (OSError, ValueError, TenureError, asyncio.TimeoutError) as caught:
                error = caught
            await asyncio.sleep(_AGAIN if self.held() else 0)
        self._over.set()
        if self._task is not None and not self._released:
            self._cancelled = True
            self._task.cancel()

    async def lost(self) -> str:
        """Waits until the lease is lost or given back, and says why."""
        await self._over.wait()
        return self.reason or "released"

    async def write_note(self, note: str) -> None:
        """Replaces the note in the lease's record; returns when it stands."""
        await _acall("PUT", f"/v1/leases/{self.id}/note", {"note": note})

    async def release(self) -> None:
        """Gives the lease back: what it guarded has ended."""
        if self._released:
            return
        self._released, self._deadline = True, 0
        self._follower.cancel()
        self._over.set()
        try:
            await _acall("DELETE", f"/v1/leases/{self.id}")
        except TenureError as error:
            if error.code not in ("no_lease", "no_tenure"):
                raise


class alease:
    """`async with alease("x") as lead:` or `lead = await alease("x")`; the arguments are those of lease()."""

    def __init__(self, name: str, wait: Optional[float] = None, note: Optional[str] = None):
        self._question = _question(name, wait, note)

    def __await__(self):
        return self._acquire().__await__()

    async def _acquire(self) -> AsyncLease:
        return AsyncLease(await _acall("POST", "/v1/leases", self._question))

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._acquire()
        self._lease._task = asyncio.current_task()
        return self._lease

    async def __aexit__(self, kind, error, trace) -> None:
        lead, self._lease._task = self._lease, None
        loss = None if lead._released else lead._loss()
        await lead.release()
        ours = lead._cancelled and kind is asyncio.CancelledError
        if ours and asyncio.current_task().uncancel() > 0:
            return  # somebody else wants it cancelled, too
        if loss and (error is None or ours):
            raise loss from None
