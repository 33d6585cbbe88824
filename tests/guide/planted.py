"""A check that cannot fail is none: mistakes planted in a copy of the guide, each of which must be found."""

import contextlib
import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

import check
from run import main as run

MISTAKES = [
    (check.links, "docs/start.md", "(concepts.md)", "(concept.md)", "no such file: concept.md"),
    (check.links, "README.md", "(docs/start.md)", "(docs/start.md#nowhere)", "no such heading: docs/start.md#nowhere"),
    (check.links, "docs/operating.md", "#when-the-store-is-away", "#when-the-store-is-gone", "no such heading"),
    (check.alerts, "docs/operating.md", "### TenureSplit\n", "### Split\n", "no section for the alert TenureSplit"),
    (check.alerts, "docs/operating.md", "### TenureSplit\n", "### TenureSplit\n### TenureSplits\n", "no alert TenureSplits"),
    (check.alerts, "deploy/prometheus/alerts.yaml", "#tenuresplit\n", "#tenuresplits\n", "TenureSplit needs runbook_url"),
    (check.alerts, "deploy/prometheus/alerts.yaml", "- alert: TenureSplit\n", "- alert: TenureTorn\n", "the alert TenureTorn"),
    (check.chapters, "docs/SUMMARY.md", "- [Operating](operating.md)\n", "", "does not list docs/operating.md"),
    (check.snippets, "docs/metrics.md", "# Metrics\n", "# Metrics\n```rust\n```\n", "does not include this page's examples"),
    (check.snippets, "docs/start.md", "```rust,no_run", "```rust,ignore", "compile it"),
    (check.snippets, "docs/start.md", "```text", "```", "say which language it is"),
]
PAGES = [
    ("```sh\nfalse\n```\n", "it ended with [1]"),
    ("```sh\nfalse\ntrue\n```\n", "it ended with [1, 0]"),
    ("<!-- guide: exits with 1 -->\n```sh\ntrue\n```\n", "it ended with [0]"),
    ("<!-- guide: terminal 1 says within 0.2s: no -->\n```sh\necho yes\n```\n", "did not say 'no'"),
    ("<!-- guide: in terminal 1 -->\n```console\ntrue\n```\n```sh\ntrue\n```\n", "is not run"),
    ("```console\ntrue\n```\n```sh\ntrue\n```\n", "nothing says why"),
    ("<!-- guide: whistle -->\n```sh\ntrue\n```\n", "what is 'whistle'?"),
]


def main():
    checkout = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="tenure-guide-") as copy:
        for made, (function, file, old, new, expected) in enumerate(MISTAKES):
            copied = Path(copy) / str(made)
            copied.mkdir()
            for path in [*Path(".").glob("*.md"), Path("crates"), Path("scripts"), Path("tests"), Path("fuzz")]:
                (copied / path).symlink_to(checkout / path)
            for path in ["docs", "deploy"]:
                shutil.copytree(checkout / path, copied / path)
            text = (checkout / file).read_text()
            assert old in text, f"{file} has no {old!r} to make a mistake of"
            (copied / file).unlink()
            (copied / file).write_text(text.replace(old, new, 1))
            os.chdir(copied)
            _, broken = function()
            os.chdir(checkout)
            if not any(expected in it for it in broken):
                raise SystemExit(f"guide: {new!r} in {file} was not noticed: {broken}")
        for text, expected in PAGES:
            page = Path(copy) / "page.md"
            page.write_text(text)
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    run(checkout, sys.argv[1], [page])
            except SystemExit as failed:
                if expected in str(failed):
                    continue
                raise
            raise SystemExit(f"guide: {text!r} passes, and should not: {expected}")
    print(f"guide: {len(MISTAKES) + len(PAGES)} planted mistakes, all found")


if __name__ == "__main__":
    main()
