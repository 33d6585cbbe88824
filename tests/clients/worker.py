"""A worker of the tests of `tenure with`: holds the lease `job`, and says in a log what it does.

It takes a lock that is free only when every earlier holder has ended or let go of it, and says `overlap` if it
is not. Its argument says how it behaves: `polite` stops when the lease is not held any more, `deaf` ignores
that, and SIGTERM, `async` is polite in asyncio, `family` leaves the work to a child. `hasty` is wrong: it gives the lease back
before its work has ended.
"""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time

import tenure


def say(text):
    # One write, so that lines of several processes do not mix.
    os.write(LOG, f"{text}\n".encode())


def begin(lead):
    try:
        fcntl.flock(PROBE, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"overlap {lead.token.term}")
    say(f"start {lead.token.term} {os.getpid()}")


def end(lead):
    say(f"end {lead.token.term}")
    fcntl.flock(PROBE, fcntl.LOCK_UN)


def work(behaviour):
    with tenure.lease("job") as lead:
        begin(lead)
        if behaviour == "family":
            # The child inherits the lock, and outlives whoever started it.
            subprocess.Popen(["sleep", "600"], pass_fds=[PROBE])
        if behaviour == "hasty":
            lead.release()
            time.sleep(0.2)
        while lead.held() or behaviour in ("deaf", "family"):
            time.sleep(0.005)
        end(lead)


async def work_async():
    async with tenure.alease("job") as lead:
        begin(lead)
        try:
            await asyncio.sleep(3600)
        finally:
            end(lead)


LOG = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
PROBE = os.open("probe", os.O_RDWR | os.O_CREAT)
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if sys.argv[1] == "async":
            asyncio.run(work_async())
        else:
            work(sys.argv[1])
    except tenure.Lost as lost:
        say(f"lost {lost.code}")
    except tenure.TenureError as error:
        if error.code == "no_tenure":
            sys.exit(3)
        say(f"error {error.code} {error}")
        time.sleep(0.05)
