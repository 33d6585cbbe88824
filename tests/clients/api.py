"""What the API of `tenure with` answers, asked by a process below it. Ends with 0 if all is as it should be."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time

import tenure


def ask(method, path, body=None, raw=None):
    """The status and the answer."""
    text = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["TENURE_SOCKET"])
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
        try:
            connection.sendall(head.encode() + text)
        except BrokenPipeError:
            pass
        answer = b""
        try:
            while more := connection.recv(65536):
                answer += more
        except ConnectionResetError:
            pass  # it was answered before all of it was sent
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


def refused(status, code, method, path, body=None, raw=None):
    got, answer = ask(method, path, body, raw)
    assert (got, answer["error"]["code"]) == (status, code), (got, answer)
    assert len(answer["error"]["message"].split()) > 3, answer
    return answer


def raises(code, call):
    try:
        call()
    except tenure.TenureError as error:
        assert error.code == code, error.code
        return error
    raise AssertionError(f"it is not refused: {code}")


def documents():
    status, about = ask("GET", "/v1")
    assert status == 200 and about["api"] == 1 and about["ttl_ms"] == 15000, about
    status, document = ask("GET", "/v1/openapi.json")
    assert status == 200 and "/v1/leases" in document["paths"]
    refused(404, "no_route", "GET", "/v2/leases")
    refused(405, "method", "PATCH", "/v1/leases")
    refused(400, "bad_request", "POST", "/v1/leases", {"name": "Not a name"})
    refused(400, "bad_request", "POST", "/v1/leases", {"name": "x", "wait": 1})
    refused(400, "bad_request", "POST", "/v1/leases", raw=b"{")
    refused(413, "body_too_long", "POST", "/v1/leases", raw=b" " * 300_000)
    refused(404, "no_lease", "GET", "/v1/leases/1")
    refused(404, "no_lease", "DELETE", "/v1/leases/01")
    refused(404, "nobody", "GET", "/v1/leader/nobody")
    refused(400, "bad_request", "GET", "/v1/leader/Not")
    status, record = ask("GET", "/v1/records/nobody")
    assert status == 200 and record["state"] == "absent", record


def one_lease():
    with tenure.lease("one", note="first") as lead:
        assert lead.held() and lead.token.term > 0 and lead.token.step == 0
        told = tenure.leader("one")
        assert told["pid"] == os.getpid() and tenure.Token(**told["token"]) == lead.token, told
        raises("held", lambda: tenure.lease("one", wait=0))
        raises("held", lambda: tenure.lease("one", wait=0.05))
        lead.write_note("second")
        assert ask("GET", "/v1/records/one")[1]["note"]["text"] == "second"
        status, listed = ask("GET", "/v1/leases")
        assert [one["name"] for one in listed["leases"]] == ["one"], listed
        first = lead.token
    assert not lead.held() and tenure.leader("one") is None
    refused(404, "no_lease", "GET", f"/v1/leases/{lead.id}")
    assert lead.wait_lost(5) == "released" and lead.reason is None
    with tenure.lease("one", wait=5) as again:
        assert again.token > first and again.note == "second"


def lost_answer():
    """Who asks again with the same key gets the lease that it holds already."""
    question = {"name": "keyed", "wait_ms": 0, "key": "k"}
    status, first = ask("POST", "/v1/leases", question)
    assert status == 201
    status, again = ask("POST", "/v1/leases", question)
    assert status == 201 and again["id"] == first["id"], again
    refused(409, "key_taken", "POST", "/v1/leases", {**question, "name": "other"})
    assert ask("DELETE", f"/v1/leases/{first['id']}") == (200, {"state": "released", "confirmed": True})


def broken_connections():
    """A connection that breaks ends no lease, and one that waits is not waited for any more."""
    with tenure.lease("cut") as lead:
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as one:
                        one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        deadline = lead._deadline
        while lead._deadline == deadline:  # it is renewed, and the client hears of it again
            assert lead.held()
            time.sleep(0.01)
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(os.environ["TENURE_SOCKET"])
        waiting.sendall(tenure._request("POST", "/v1/leases", {"name": "cut", "key": "w"}))
        while ask("POST", "/v1/leases", {"name": "cut", "key": "w", "wait_ms": 0})[1]["error"]["code"] == "held":
            time.sleep(0.01)
        waiting.close()
    # Were it still waited for, it would be held by now, or soon.
    tenure.lease("cut", wait=5).release()


def relatives():
    """A child can use the lease of its parent, and a stranger's child cannot; a fork holds nothing."""
    with tenure.lease("family") as lead:
        code = f"import api; assert api.ask('GET', '/v1/leases/{lead.id}')[0] == 200"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=os.path.dirname(__file__))
        child = os.fork()
        if child == 0:
            os._exit(1 if lead.held() else 0)
        assert os.waitpid(child, 0)[1] == 0 and lead.held()
        # A lease of a child that has ended is given back, also if somebody has inherited its connections.
        code = "import tenure, os; lead = tenure.lease('orphan'); print('held', flush=True); os.kill(os.getpid(), 9)"
        child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout == b"held\n", child
        tenure.lease("orphan", wait=5).release()
        # That of a sibling is out of reach.
        code = "import tenure; lead = tenure.lease('sibling'); print(lead.id, flush=True); input()"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        number = child.stdout.readline().decode().strip()
        refused(404, "no_lease", "DELETE", f"/v1/leases/{number}")
        child.communicate(b"\n")


def bounds():
    leases = [tenure.lease(f"many-{number}", wait=5) for number in range(20)]
    rest = [ask("POST", "/v1/leases", {"name": f"more-{number}"})[1]["id"] for number in range(44)]
    refused(429, "too_many_leases", "POST", "/v1/leases", {"name": "too-many"})
    for one in leases:
        one.release()
    for number in rest:
        ask("DELETE", f"/v1/leases/{number}")
    # Connections that say nothing, and slow readers, are no matter to others, within the bounds.
    crowd = []
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.connect(os.environ["TENURE_SOCKET"])
        one.settimeout(0.05)
        crowd.append(one)
        try:
            answer = one.recv(65536)
        except TimeoutError:
            continue
        assert answer.startswith(b"HTTP/1.1 503") and b"too_many_connections" in answer, answer
        break
    assert len(crowd) <= 65, len(crowd)
    code = "import tenure; tenure.lease('beside-a-crowd', wait=5).release()"
    subprocess.run([sys.executable, "-c", code], check=True)
    for one in crowd:
        one.close()


async def in_asyncio():
    async with tenure.alease("async") as lead:
        assert lead.held()
        await lead.write_note("n")
        try:
            await tenure.alease("async", wait=0.05)
            raise AssertionError("it is held")
        except tenure.Held:
            pass
    assert not lead.held() and await lead.lost() == "released"
    # A loss cancels the block.
    try:
        async with tenure.alease("async", wait=5) as lead:
            path = f"/v1/leases/{lead.id}"
            threading.Thread(target=ask, args=("DELETE", path)).start()
            await asyncio.sleep(60)
    except tenure.Lost as lost:
        assert lost.code == "released", lost.code
    else:
        raise AssertionError("it is not cancelled")


def quick():
    """held() is a clock read."""
    with tenure.lease("quick") as lead:
        best = min(timed(lead.held) for _ in range(20))
    print(f"held(): {best:.0f} ns")
    assert best < 20_000, best
    begun = time.perf_counter()
    for _ in range(50):
        tenure.lease("quick", wait=5).release()
    print(f"acquire and release: {(time.perf_counter() - begun) / 50 * 1e6:.0f} us")


def timed(call, count=10_000):
    begun = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begun) / count


if __name__ == "__main__":
    for check in [documents, one_lease, lost_answer, broken_connections, relatives, bounds, quick]:
        print(check.__name__, flush=True)
        check()
    asyncio.run(in_asyncio())
    print("done", flush=True)
