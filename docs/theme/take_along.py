#!/usr/bin/env python3
"""Makes a built book complete: copies the source files that its pages link to, and fails on links that lead nowhere.

take_along.py BOOK     BOOK is the folder that `mdbook build docs` wrote

Pages link to source files beside `docs`, which are no part of the book. Each is copied to BOOK/source as text, and the
link leads there.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs"
LINK = re.compile(r'(?P<before><a [^>]*?href=|<img [^>]*?src=)"(?P<target>[^"#:?]+)(?P<rest>[#?][^"]*)?"')


def original(book: Path, page: Path, target: str) -> Path | None:
    """The project's file that `target` on `page` means, if it is none of the book's."""
    meant = Path(os.path.normpath(DOCS / page.parent.relative_to(book) / target))
    if meant.suffix == ".html" and not meant.exists():
        meant = meant.with_suffix(".md")
    if meant.is_dir():
        meant /= "README.md"
    return meant if meant.is_file() and DOCS not in meant.parents else None


def taken(book: Path, page: Path, missing: list[str]) -> Callable[[re.Match[str]], str]:
    """What replaces a link of `page`."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if (page.parent / target).exists():
            return found[0]
        # mdbook makes index.html of README.md.
        index = re.sub(r"README\.html$", "index.html", target)
        if (page.parent / index).exists():
            return f'{found["before"]}"{index}{found["rest"] or ""}"'
        if (source := original(book, page, target)) is None:
            missing.append(f"{page.relative_to(book)}: {target}")
            return found[0]
        copy = book / "source" / f"{source.relative_to(TOP)}.txt"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        up = "../" * (len(page.relative_to(book).parts) - 1)
        return f'{found["before"]}"{up}{copy.relative_to(book)}"'

    return link


def main() -> None:
    """Completes the book that the command line names."""
    book = Path(sys.argv[1]).resolve()
    missing: list[str] = []
    pages = [page for page in book.rglob("*.html") if page.name not in ("404.html", "print.html")]
    for page in pages:
        page.write_text(LINK.sub(taken(book, page, missing), page.read_text()))
    if missing:
        sys.exit("links that lead nowhere:\n" + "\n".join(missing))
    print(f"the book: {book / 'index.html'}, {len(pages)} pages")


if __name__ == "__main__":
    main()
