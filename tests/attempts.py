"""Tests that are marked ``alone`` judge how long something took, and others may have the machine for a moment: a neighbour of a
virtual machine, a disk that syncs. So the best of a few attempts counts. What is too slow, or wrong, is so each time.

How often it took more than one, and why, stands at the end of a run: a test that often does has a limit that is too tight, or
shows that something does not always work.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

MOST = 3
_FAILED = "failed before"


def run(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the test up to ``MOST`` times and report the last one. None: it is for pytest to run, once."""
    if item.get_closest_marker("alone") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    failed: list[str] = []
    while True:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        again = [report.longreprtext for report in reports if report.failed]
        if not again or len(failed) == MOST - 1 or item.session.shouldstop:
            break
        failed += again[:1]
    for report in reports:
        if report.when == "teardown":
            report.user_properties += [(_FAILED, text) for text in failed]
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def summarize(terminal: TerminalReporter) -> None:
    """Say which tests took more than one attempt."""
    reports = [
        report for reports in terminal.stats.values() for report in reports if isinstance(report, pytest.TestReport)
    ]
    for report in reports:
        for text in [text for name, text in report.user_properties if name == _FAILED and report.when == "teardown"]:
            terminal.section(f"an attempt of {report.nodeid}", yellow=True)
            terminal.write_line(str(text))
