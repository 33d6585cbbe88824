"""The guide's pages, as what can be done with them: blocks of code, and directives in comments.

    <!-- guide: in terminal 2, goes on -->     the next block is typed there, and does not end by itself
    <!-- guide: exits with 1 -->               ... ends with this status (otherwise with 0)
    <!-- guide: into nightly/src/main.rs -->   the next block is saved as this file
    <!-- guide: terminal 1 says within 5s: REGEX -->   after the next block (or the key that was just
                                               pressed); what it said up to there counts once
    <!-- guide: press Ctrl-C in terminal 1 -->
    <!-- guide: lock nightly -->               this crate gets the versions of the checkout's Cargo.lock
    <!-- guide: a cluster -->                  three nodes run from here to the end of the page

Blocks of ```sh are run, in terminal 1 unless told otherwise; those of ```console are not.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

DIRECTIVE = re.compile(r"<!-- guide: (.*?) -->")
FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<info>[^`]*)$")


@dataclass
class Block:
    line: int
    info: str
    text: str

    @property
    def language(self):
        return re.split(r"[\s,]", self.info)[0]


@dataclass
class Directive:
    line: int
    text: str


@dataclass
class Page:
    path: Path
    parts: list = field(default_factory=list)

    def blocks(self, *languages):
        return [it for it in self.parts if isinstance(it, Block) and it.language in languages]


def read(path):
    """A page's blocks and directives in their order."""
    page, block, marks, indent = Page(Path(path)), None, None, ""
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if block is not None:
            if fence and fence["marks"].startswith(marks) and not fence["info"].strip():
                page.parts.append(block)
                block = None
            else:
                block.text += line.removeprefix(indent) + "\n"
        elif fence:
            marks, indent = fence["marks"], fence["indent"]
            block = Block(number, fence["info"].strip(), "")
        else:
            page.parts += [Directive(number, text) for text in DIRECTIVE.findall(line)]
    if block is not None:
        raise SystemExit(f"{path}:{block.line}: this block does not end")
    return page


def prose(path):
    """The page without its blocks of code: what links are looked for in."""
    lines, marks = [], None
    for line in Path(path).read_text().splitlines():
        fence = FENCE.match(line)
        if marks is None and fence:
            marks = fence["marks"]
            lines.append("")
        elif marks is not None:
            if fence and fence["marks"].startswith(marks) and not fence["info"].strip():
                marks = None
            lines.append("")
        else:
            lines.append(line)
    return lines
