"""A terminal with a shell in it, as a reader has one: what is typed, what it says, Ctrl-C."""

import os
import pty
import re
import select
import signal
import subprocess
import time

PROMPT = "\x1eready {}\x1f"
MORE = "\x1emore\x1f"
ASKS = re.compile(r"\x1e(?:ready (\d+)|more)\x1f")


class Failed(Exception):
    pass


class Terminal:
    def __init__(self, name, directory, environment):
        self.name, self.said, self.seen, self._asked = name, "", 0, 0
        ours, theirs = pty.openpty()
        # Not the terminal's echo: only what programs say counts.
        environment = environment | {"TERM": "dumb", "PS1": PROMPT.format("$?"), "PS2": MORE, "PROMPT_COMMAND": ""}
        self.shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, env=environment,
            # What runs in the background of a script ignores it, and what that starts would, too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)
        self.ours = ours
        self._prompt(10)
        self.type("stty -echo")

    def type(self, text, within=60):
        """Types a block, each line when the shell asks for it, and waits until all of it is done; the statuses of
        its commands. (What is typed ahead would be read by what runs.)"""
        statuses = []
        for line in text.rstrip("\n").split("\n"):
            os.write(self.ours, line.encode() + b"\n")
            status = self._prompt(within)
            statuses += [status] if status is not None else []
        return statuses

    def start(self, text):
        """Types a block that goes on."""
        os.write(self.ours, text.rstrip("\n").encode() + b"\n")

    def interrupt(self):
        os.write(self.ours, b"\x03")
        self._prompt(10)

    def wait_for(self, pattern, within):
        """Waits until it has said this, since it was last waited for."""
        found = self._until(lambda: re.search(pattern, self.said[self.seen:]), within)
        if not found:
            raise Failed(f"terminal {self.name} did not say {pattern!r} within {within:g} s; it said:\n"
                         + self.said[self.seen:])
        self.seen += found.end()

    def close(self):
        """Ends the shell and what was started in it."""
        try:
            session = os.tcgetpgrp(self.ours)
            os.killpg(session, signal.SIGKILL)
        except (OSError, ProcessLookupError):
            pass
        for line in subprocess.run(["ps", "-o", "pid=", "-s", str(self.shell.pid)], capture_output=True,
                                   text=True).stdout.split():
            try:
                os.kill(int(line), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.shell.wait()
        os.close(self.ours)

    def _prompt(self, within):
        """Waits until the shell asks for more; with the status of the last command if that is done."""
        found = self._until(lambda: ASKS.search(self.said, self._asked), within)
        if not found:
            raise Failed(f"terminal {self.name} was not done within {within:g} s; it said:\n{self.said[self.seen:]}")
        self._asked = found.end()
        return int(found[1]) if found[1] else None

    def _until(self, found, within):
        end = time.monotonic() + within
        while True:
            if it := found():
                return it
            left = end - time.monotonic()
            if left <= 0:
                return None
            if select.select([self.ours], [], [], left)[0]:
                try:
                    self.said += os.read(self.ours, 65536).decode(errors="replace")
                except OSError:
                    return found()
