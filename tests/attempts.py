"""Others may have the machine for a moment: a neighbour of a virtual machine, a disk that syncs. So a test that was too slow, and
failed of nothing else, has two more attempts. What is wrong fails at once.

How often it took more than one, and why, stands at the end of a run: a test that often does has a limit that is too tight, or
shows that something does not always work.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

MOST = 3
_FAILED = "failed before"


class TooSlow(AssertionError):
    """It took longer than it may. Nothing was wrong so far."""


def in_time(took: float, limit: float, seen: object = "") -> None:
    """Fail unless it took less, in whatever unit both have. seen: what to tell beside it."""
    if not took < limit:
        raise TooSlow(f"took {took}, not less than {limit} {seen}")


def run(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the test up to ``MOST`` times and report the last one. None: it is for pytest to run, once."""
    if item.get_closest_marker("alone") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    failed: list[str] = []
    while True:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        again = [report for report in reports if report.failed]
        if not again or not all(map(_was_slow, again)) or len(failed) == MOST - 1 or item.session.shouldstop:
            break
        failed.append(again[0].longreprtext)
    for report in reports:
        if report.when == "teardown":
            report.user_properties += [(_FAILED, text) for text in failed]
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _was_slow(report: pytest.TestReport) -> bool:
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash is not None and TooSlow.__name__ in crash.message.partition(":")[0]


def summarize(terminal: TerminalReporter) -> None:
    """Say which tests took more than one attempt."""
    reports = [
        report for reports in terminal.stats.values() for report in reports if isinstance(report, pytest.TestReport)
    ]
    for report in reports:
        for text in [text for name, text in report.user_properties if name == _FAILED and report.when == "teardown"]:
            terminal.section(f"an attempt of {report.nodeid}", yellow=True)
            terminal.write_line(str(text))
