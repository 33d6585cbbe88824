"""Does what the guide's pages say, in terminals, and sees whether it comes out as they say.

    run.py CHECKOUT PROGRAMS PAGE...     PROGRAMS: the directory that `tenure` is in
    run.py --not-run PAGE...             which blocks are not, and why
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blocks import Block, read
from terminal import Failed, Terminal

SAYS = re.compile(r"terminal (\w+) says(?: within ([\d.]+)s)?: (.*)")
TERMINAL = re.compile(r"in terminal (\w+)(, goes on)?")


class Reader:
    """Somebody who does all that a page says, in an empty directory."""

    def __init__(self, checkout, programs, directory):
        self.checkout, self.directory = checkout, directory
        self.terminals, self.nodes, self.ran = {}, [], 0
        self._reset()
        # What cargo builds here is kept from one time to the next; the reader has a clone beside.
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CARGO_TARGET_DIR": str(Path(os.environ.get("CARGO_TARGET_DIR", checkout / "target")) / "guide"),
            "CARGO_INCREMENTAL": "0",
            "CARGO_TERM_COLOR": "never",
        }
        self.environment.pop("CARGO_BUILD_BUILD_DIR", None)
        (directory / "tenure").symlink_to(checkout)

    def _reset(self):
        self.where, self.goes_on, self.status, self.into, self.later = "1", False, 0, None, []
        self.announced = self.pressed = self.excused = False

    def terminal(self, name):
        if name not in self.terminals:
            self.terminals[name] = Terminal(name, self.directory, self.environment)
        return self.terminals[name]

    def follow(self, page):
        for part in page.parts:
            try:
                if isinstance(part, Block):
                    self.block(part)
                else:
                    self.directive(part.text)
            except Failed as failed:
                raise SystemExit(f"guide: {page.path}:{part.line}: {failed}")

    def directive(self, text):
        if match := SAYS.fullmatch(text):
            expected = (match[1], match[3], float(match[2] or 10))
            # After a key was pressed, what comes of it; otherwise what comes of the next block.
            if self.pressed and not self.announced:
                self.heard(*expected)
            else:
                self.later.append(expected)
        elif match := TERMINAL.fullmatch(text):
            self.where, self.goes_on = match[1], bool(match[2])
            self.announced = True
        elif match := re.fullmatch(r"exits with (\d+)", text):
            self.status, self.announced = int(match[1]), True
        elif match := re.fullmatch(r"press Ctrl-C in terminal (\w+)", text):
            self.terminal(match[1]).interrupt()
            self.pressed = True
        elif match := re.fullmatch(r"into (\S+)", text):
            self.into = self.directory / match[1]
        elif match := re.fullmatch(r"lock (\S+)", text):
            shutil.copy(self.checkout / "Cargo.lock", self.directory / match[1])
        elif text == "a cluster":
            self.cluster()
        elif text.startswith("not here: "):
            self.excused = True
        else:
            raise Failed(f"what is {text!r}?")

    def block(self, block):
        if self.into:
            self.into.write_text(block.text)
        elif block.language == "sh":
            self.ran += 1
            terminal = self.terminal(self.where)
            if self.goes_on:
                terminal.start(block.text)
            else:
                statuses = terminal.type(block.text, within=180)
                if statuses[-1] != self.status or any(statuses[:-1]):
                    raise Failed(f"it ended with {statuses}:\n{terminal.said[terminal.seen:]}")
            for expected in self.later:
                self.heard(*expected)
        elif self.announced or self.later:
            raise Failed(f"a block of {block.language!r} is not run")
        elif block.language == "console" and not self.excused:
            raise Failed("it is not run, and nothing says why: <!-- guide: not here: … -->")
        self._reset()

    def heard(self, name, pattern, within):
        self.terminal(name).wait_for(pattern, within)

    def cluster(self):
        """Three nodes, as the README has them, each with a page of its own."""
        names = [f"shop-{number}" for number in range(3)]
        self.tenure("certs", "new", "--cluster", "shop", *names)
        (self.directory / "write-token").write_text("a-secret-of-the-operators\n")
        for number, name in enumerate(names):
            (self.directory / f"{name}.toml").write_text(NODE.format(number=number, name=name))
            log = open(self.directory / f"{name}.log", "w")
            self.nodes.append(subprocess.Popen(["tenure", "node", "--config", f"{name}.toml"], stderr=log,
                                               cwd=self.directory, env=self.environment))
        # All of them must say so, and go on saying it: news may still be on its way.
        end, whole = time.monotonic() + 30, 0
        while whole < 5:
            said = [self.tenure("cluster", "status", "--admin", f"{name}.sock", check=False) for name in names]
            formed = all(it.stdout.count(" up ") == 3 and "converged  yes" in it.stdout for it in said)
            whole = whole + 1 if formed else 0
            if time.monotonic() > end:
                raise Failed("the cluster has not formed:\n" + "".join(it.stdout + it.stderr for it in said))
            time.sleep(0.2)

    def tenure(self, *arguments, check=True):
        done = subprocess.run(["tenure", *arguments], cwd=self.directory, env=self.environment, capture_output=True,
                              text=True)
        if check and done.returncode:
            raise Failed(done.stderr)
        return done

    def close(self):
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.wait()
        for terminal in self.terminals.values():
            terminal.close()


NODE = """\
cluster = "shop"
name = "{name}"
address = "127.0.0.1:740{number}"
identity = "certs/{name}"
store = "file:./leases"
formation = "shop.formation"
admin = "{name}.sock"
[downing]
strategy = "lease-majority"
lease = "shop.arbitration"
[manage]
listen = "127.0.0.1:748{number}"
write_token_file = "write-token"
"""


def main(checkout, programs, pages):
    for path in pages:
        page = read(path)
        if not page.blocks("sh"):
            continue
        directory = Path(tempfile.mkdtemp(prefix="tenure-guide-"))
        reader = Reader(Path(checkout), programs, directory)
        began = time.monotonic()
        try:
            reader.follow(page)
        finally:
            reader.close()
            shutil.rmtree(directory)
        print(f"guide: {path}: {reader.ran} blocks as printed, {time.monotonic() - began:.0f} s", flush=True)


def not_run(pages):
    why, count = "", 0
    for path in pages:
        for part in read(path).parts:
            if isinstance(part, Block):
                if part.language == "console":
                    count += 1
                    print(f"guide: not run: {path}:{part.line}: {why}")
                why = ""
            elif part.text.startswith("not here: "):
                why = part.text.removeprefix("not here: ")
    print(f"guide: {count} blocks of these pages were not run")


if __name__ == "__main__" and sys.argv[1] == "--not-run":
    not_run(sys.argv[2:])
elif __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
