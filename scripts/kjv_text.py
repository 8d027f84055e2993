#!/usr/bin/env python3
"""Writes the King James text of Debian's bible-kjv-text out as plain text: kjv_text.py FILE

The package holds the text packed; `bible -f` (package bible-kjv) dumps it, one verse a line after an
abbreviated reference ("1Sm2:3 And ..."). The file has each book's name on a line of its own, then one
verse a line after chapter:verse, an empty line between chapters:

    Genesis

    1:1 In the beginning God created the heaven and the earth.
"""

import os
import re
import subprocess
import sys

# In the order of the dump, which is the order of the canon.
BOOKS = """Genesis, Exodus, Leviticus, Numbers, Deuteronomy, Joshua, Judges, Ruth, 1 Samuel, 2 Samuel,
1 Kings, 2 Kings, 1 Chronicles, 2 Chronicles, Ezra, Nehemiah, Esther, Job, Psalms, Proverbs,
Ecclesiastes, Song of Solomon, Isaiah, Jeremiah, Lamentations, Ezekiel, Daniel, Hosea, Joel, Amos,
Obadiah, Jonah, Micah, Nahum, Habakkuk, Zephaniah, Haggai, Zechariah, Malachi, Matthew, Mark, Luke,
John, Acts, Romans, 1 Corinthians, 2 Corinthians, Galatians, Ephesians, Philippians, Colossians,
1 Thessalonians, 2 Thessalonians, 1 Timothy, 2 Timothy, Titus, Philemon, Hebrews, James, 1 Peter,
2 Peter, 1 John, 2 John, 3 John, Jude, Revelation"""
VERSES = 31102


def plain_text(dump: str) -> str:
    """The text of the file. Raises ValueError where the dump is not the whole King James text."""
    names = [name.strip() for name in BOOKS.replace("\n", " ").split(",")]
    lines: list[str] = []
    abbreviations: list[str] = []
    chapter = None
    verses = 0
    for number, line in enumerate(dump.splitlines(), 1):
        match = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*\S)\s*", line)
        if not match:
            raise ValueError(f"line {number} is not a verse: {line[:60]!r}")
        book, in_chapter, verse, words = match.groups()
        if not abbreviations or abbreviations[-1] != book:
            abbreviations.append(book)
            if len(abbreviations) > len(names):
                raise ValueError(f"line {number}: more than {len(names)} books")
            lines += ([""] if lines else []) + [names[len(abbreviations) - 1]]
            chapter = None
        if chapter != in_chapter:
            lines.append("")
            chapter = in_chapter
        lines.append(f"{chapter}:{verse} {re.sub(r' +', ' ', words)}")
        verses += 1
    if (len(abbreviations), verses) != (len(names), VERSES):
        raise ValueError(f"{len(abbreviations)} books, {verses} verses; must be {len(names)}, {VERSES}")
    return "\n".join(lines) + "\n"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    target = sys.argv[1]
    dump = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, check=True,
                          capture_output=True, text=True, encoding="ascii").stdout
    text = plain_text(dump)
    temporary = f"{target}.{os.getpid()}"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(temporary, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
