"""The report: one HTML page with all in it, that opens without a network.

`tables.py` turns summaries into words, `plots.py` draws them, `page.py` sets both into the page `page.html.j2`, and the
tables alone into `summary.md.j2`.
"""

from memlane_lab.report.page import Links, judge, markdown, write

__all__ = ["Links", "judge", "markdown", "write"]
