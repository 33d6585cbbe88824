"""For mdBook: links to files that are no part of the book lead to the repository, and those to a README to the page
that mdBook makes of it."""

import json
import os
import re
import sys

LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )((?:\.\./)+[^)\s]*)", re.MULTILINE)
README = re.compile(r"(\]\((?:stores/)?)README\.md([#)])")


def outside(book, repository):
    for item in book:
        if not isinstance(item, dict) or "Chapter" not in item:
            continue
        chapter = item["Chapter"]
        here = os.path.dirname(chapter["source_path"] or chapter["path"] or "")

        def lead(match):
            target = os.path.normpath(os.path.join("docs", here, match[2]))
            return match[0] if target.startswith("docs/") else f"{match[1]}{repository}/blob/main/{target}"

        chapter["content"] = README.sub(r"\1index.md\2", LINK.sub(lead, chapter["content"]))
        outside(chapter["sub_items"], repository)


if len(sys.argv) > 1 and sys.argv[1] == "supports":
    sys.exit(0)
context, book = json.load(sys.stdin)
repository = context["config"]["output"]["html"]["git-repository-url"]
outside(book.get("items", book.get("sections")), repository)
json.dump(book, sys.stdout)
