"""The report as JUnit XML: a test case for each case, and one for each change that belongs to none."""

from __future__ import annotations

from xml.etree import ElementTree as Tree

from synth.bench.report.data import ReportData
from synth.bench.values import LEFT_OUT, NO_ANSWER, OK

#: Statuses that say nothing about the code: shown as skipped.
_SKIPPED = (LEFT_OUT, NO_ANSWER)


def junit_text(data: ReportData) -> str:
    """The XML: regressions and failed cases are failures, cases that have no answer or were left out are skipped."""
    worse: dict[str, list[str]] = {}
    for change in data.regressions:
        worse.setdefault(change.subject, []).append(change.line)
    root = Tree.Element("testsuites")
    suite = Tree.SubElement(root, "testsuite", name=_safe(f"synth bench {data.run.suite}"), timestamp=data.run.started)
    for record in data.records.values():
        job = data.jobs[record.job]
        share = job.seconds / max(1, sum(other.job == record.job for other in data.records.values()))
        case = Tree.SubElement(suite, "testcase", classname=_safe(f"{record.machine}.{record.collective}"))
        case.attrib |= {"name": _safe(record.case), "time": f"{share:.3f}"}
        told = worse.pop(record.case, [])
        if record.status in _SKIPPED and not told:
            Tree.SubElement(case, "skipped", message=_safe(f"{record.status}: {record.problem}"))
        elif record.status not in (OK, *_SKIPPED) or told:
            _fail(case, told or [f"{record.status}: {record.problem}"])
        if record.time_us is not None:
            output = Tree.SubElement(case, "system-out")
            output.text = _safe(f"time {record.time_us:.3f} us, {record.efficiency:.1%} of the bound\n{job.command}")
    for subject, told in worse.items():
        _fail(Tree.SubElement(suite, "testcase", classname="synthesis", name=_safe(subject), time="0"), told)
    for item in data.measurements:
        case = Tree.SubElement(suite, "testcase", classname="gpu", name=_safe(item.name), time="0")
        if item.is_wrong:
            _fail(case, [item.line])
        elif item.is_skipped:
            Tree.SubElement(case, "skipped", message=_safe(item.problem))
    for name in ("failure", "skipped"):
        count = sum(case.find(name) is not None for case in suite)
        suite.set("failures" if name == "failure" else name, str(count))
    suite.set("tests", str(len(suite)))
    suite.set("errors", "0")
    Tree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Tree.tostring(root, encoding="unicode") + "\n"


def _fail(case: Tree.Element, lines: list[str]) -> None:
    failure = Tree.SubElement(case, "failure", message=_safe(lines[0]))
    failure.text = _safe("\n".join(lines))


def _safe(text: str) -> str:
    """XML has no place for control characters."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
