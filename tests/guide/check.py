"""What the guide rests on: links and anchors lead somewhere, each alert has its section, each page its chapter.

    check.py           docs/, the README and its neighbours, as files
    check.py BOOK      the book as built: every link inside of it
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from blocks import prose, read

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
CODE = re.compile(r"(`+)(?:(?!\1).)*?\1(?!`)")
HEADING = re.compile(r"^(#{1,6}) (.*)$")
RUNBOOK = "https://github.com/tenure-rs/tenure/blob/main/docs/operating.md#"


def anchors(path):
    """As GitHub and mdBook make them of headings."""
    found = set()
    for line in prose(path):
        if match := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[2]).replace("`", "").strip().lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            number = 0
            while (it := f"{slug}-{number}" if number else slug) in found:
                number += 1
            found.add(it)
    return found


def links():
    pages = [Path(it) for it in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    pages += sorted(Path("docs").rglob("*.md"))
    count, broken = 0, []
    for page in pages:
        # A code span that is the text of a link stays; brackets in other code are no links.
        text = CODE.sub(lambda code: code[0].replace("[", "").replace("]", ""), "\n".join(prose(page)))
        for match in LINK.finditer(text):
            target, line = match[1] or match[2], text.count("\n", 0, match.start()) + 1
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            file, _, anchor = target.partition("#")
            path = (page.parent / unquote(file)) if file else page
            if not path.exists():
                broken.append(f"{page}:{line}: no such file: {target}")
            elif anchor and path.suffix == ".md" and unquote(anchor) not in anchors(path):
                broken.append(f"{page}:{line}: no such heading: {target}")
    return count, broken


def alerts():
    """Each has a section of the same name, and says where it is; and there is no section without an alert."""
    text = Path("deploy/prometheus/alerts.yaml").read_text()
    named = re.findall(r"- alert: (\w+)\n(.*?)(?=\n\s+- alert:|\n  - name:|\Z)", text, re.DOTALL)
    sections = {m[2] for line in prose("docs/operating.md") if (m := HEADING.match(line)) and m[2].startswith("Tenure")}
    broken = [f"docs/operating.md: no section for the alert {name}" for name, _ in named if name not in sections]
    broken += [f"docs/operating.md: there is no alert {name}" for name in sorted(sections - {name for name, _ in named})]
    for name, rule in named:
        if f"runbook_url: {RUNBOOK}{name.lower()}\n" not in rule + "\n":
            broken.append(f"deploy/prometheus/alerts.yaml: {name} needs runbook_url: {RUNBOOK}{name.lower()}")
    return len(named), broken


def chapters():
    summary = set(LINK.findall(Path("docs/SUMMARY.md").read_text()))
    listed = {Path("docs") / file for file, _ in summary}
    pages = {path for path in Path("docs").rglob("*.md") if path.name != "SUMMARY.md"}
    return len(pages), [f"docs/SUMMARY.md does not list {page}" for page in sorted(pages - listed)]


def snippets():
    """A page with Rust in it is compiled with the documentation tests, and nothing in it is left out."""
    library, count, broken = Path("crates/tenure/src/lib.rs").read_text(), 0, []
    for page in [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]:
        rust = read(page).blocks("rust")
        count += len(rust)
        if rust and f"../../../{page}\"" not in library:
            broken.append(f"{page}:{rust[0].line}: crates/tenure/src/lib.rs does not include this page's examples")
        broken += [f"{page}:{it.line}: compile it: no_run, not ignore" for it in rust if "ignore" in it.info]
        # Without one it would be taken for Rust, and compiled.
        broken += [f"{page}:{it.line}: say which language it is" for it in read(page).blocks("")]
    return count, broken


class Hrefs(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids = [], set()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        self.links += [attributes[it] for it in ("href", "src") if attributes.get(it)]


def book(root):
    pages = {}
    for path in sorted(root.rglob("*.html")):
        pages[path.resolve()] = parser = Hrefs()
        parser.feed(path.read_text())
    count, broken = 0, []
    for path, page in pages.items():
        # These are shown at other addresses than their own.
        if path.name in ("404.html", "print.html", "toc.html"):
            continue
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            count += 1
            file, _, anchor = link.partition("#")
            target = (path.parent / unquote(file)).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                broken.append(f"{path.name}: leads nowhere: {link}")
            elif anchor and target in pages and unquote(anchor) not in pages[target].ids:
                broken.append(f"{path.name}: no such heading: {link}")
    return count, broken


def main():
    if len(sys.argv) > 1:
        checks = {"links of the book": lambda: book(Path(sys.argv[1]))}
    else:
        checks = {"links": links, "alerts": alerts, "chapters": chapters, "examples in Rust": snippets}
    failed = []
    for what, check in checks.items():
        count, broken = check()
        print(f"guide: {count} {what}, {len(broken)} wrong")
        failed += broken
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
