"""Reports: what changed stands first, in every form; the page needs nothing from elsewhere, and its charts are drawn."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as Tree

import pytest

from synth.bench.gpu.measurement import Measurement, keep
from synth.bench.report import ReportData, gather, html_text, junit_text, markdown_text
from synth.bench.store import Store
from synth.bench.values import Record
from tests.benches import HERE, NEXT, outcome, record, suite

CASES = tuple(
    f"{machine}/{collective}/{size}/auto/0"
    for machine in ("ring4", "line4")
    for collective in ("allgather", "alltoall")
    for size in ("1KB", "4KB")
)
BAD = "ring4/alltoall/4KB/auto/0"
#: What a record without an answer has.
NOTHING = {
    "time_us": None,
    "schedule_us": None,
    "bound_us": None,
    "efficiency": None,
    "xml_hash": None,
    "baselines_us": {},
}
#: What a name from a file could hold.
NASTY = "</script><script>alert('x')</script> & \"quoted\" | ]]>"


def data(path: Path, second: Sequence[Record] | None, measurements: Sequence[Measurement] = ()) -> ReportData:
    """The report of a run with the eight cases, after one in which all were well; only that one where `second` is None."""
    good = [record(case, time_us=5.0 + place, schedule_us=3.0 + place) for place, case in enumerate(CASES)]
    with Store(str(path / "h.sqlite"), write=True) as store:
        for origin, records in ((HERE, good), (NEXT, second)):
            if records is None:
                continue
            run = store.begin_run(suite(), origin)
            for job in dict.fromkeys(item.job for item in records):
                store.add(run, outcome(*(item for item in records if item.job == job)))
            store.finish(run, 60.0)
        keep(store, measurements)
        return gather(store, store.runs()[-1])


def changed() -> list[Record]:
    """One case worse, one wrong, one better, one without an answer."""
    records = {case: record(case, time_us=5.0 + place, schedule_us=3.0 + place) for place, case in enumerate(CASES)}
    records[CASES[0]] = replace(records[CASES[0]], schedule_us=4.5, time_us=6.5)
    records[BAD] = record(BAD, status="verify failed", problem=NASTY, **NOTHING)
    records[CASES[2]] = replace(records[CASES[2]], time_us=6.0)
    return list(records.values())


@pytest.fixture
def worse(tmp_path: Path) -> ReportData:
    skipped = Measurement(
        "2026-01-01", "c", "ring4", "allgather", 0, "feed", "nccl-tests", "skipped", "0 GPUs here, 4 needed"
    )
    wrong = replace(skipped, bytes=1024, status="wrong", problem="12 elements are wrong", with_us=9.0, simulated_us=5.0)
    return data(tmp_path, changed(), [wrong, skipped])


def test_the_few_lines_begin_with_the_verdict_and_what_is_wrong(worse: ReportData) -> None:
    verdict, cases, *lines = worse.lines()
    assert verdict.startswith("3 things are worse or wrong since run 1 (tiny, c0ffee00, ")
    assert cases == "7 of 8 cases have a verified answer"
    assert lines[0] == f"wrong: {BAD}: verify failed: {NASTY}"
    assert lines[1] == "wrong: ring4/allgather/1KB, nccl-tests: wrong: 12 elements are wrong"
    assert [line.split(":")[0] for line in lines[2:]] == ["worse", "worse", "worse", "better"]
    assert worse.exit_code == 1


def test_equal_runs_are_no_change(tmp_path: Path) -> None:
    same = [record(case, time_us=5.0 + place, schedule_us=3.0 + place) for place, case in enumerate(CASES)]
    found = data(tmp_path, same)
    assert found.lines()[0].startswith("No change since run 1")
    assert found.exit_code == 0
    assert "every deterministic column is as it was" in html_text(found)


def test_a_first_run_has_nothing_to_compare_with(tmp_path: Path) -> None:
    found = data(tmp_path, None)
    assert (found.before, found.comparison, found.exit_code) == (None, None, 0)
    assert found.lines()[0] == "First run of this suite: nothing to compare with"
    assert "There is no earlier run" in html_text(found)
    assert markdown_text(found).startswith("## First run")


def test_what_was_left_out_came_or_went_is_a_line_each(tmp_path: Path) -> None:
    left_out = {"status": "left out", "problem": "the suite's 60 s were up", "time_us": None, "efficiency": None}
    records = [record(case, **left_out) for case in CASES[:4]]
    records += [record(CASES[4], instance_hash="another"), record("line4/alltoall/4KB/auto/1")]
    found = data(tmp_path, records)
    assert found.exit_code == 0
    lines = [
        f"4 cases are left out (the suite's 60 s were up): {', '.join(CASES[:3])}, and 1 more",
        "1 case is new: line4/alltoall/4KB/auto/1",
        f"3 cases are gone: {', '.join(CASES[5:])}",
        f"1 case is not comparable (their machine or request changed): {CASES[4]}",
    ]
    assert found.remarks == lines
    page, text = html_text(found), markdown_text(found)
    for line in lines:
        assert escape(line) in page
        assert f"- {line}" in text
        assert line in found.lines()


def test_a_run_that_was_ended_is_not_told_as_unchanged(tmp_path: Path) -> None:
    with Store(str(tmp_path / "h.sqlite"), write=True) as store:
        run = store.begin_run(suite(), HERE)
        store.add(run, outcome())
        store.finish(run, 1.0)
        ended = store.begin_run(suite(), NEXT)
        store.add(ended, outcome(record()))
        found = gather(store, ended)
    assert found.verdict == "Not finished: 1 of 4 cases are there"


def test_runs_without_a_case_in_common_are_not_told_as_unchanged(tmp_path: Path) -> None:
    found = data(tmp_path, [record("line4/alltoall/4KB/auto/1")])
    assert (found.verdict, found.exit_code) == ("Nothing to compare: no case in common", 0)
    assert "every deterministic column" not in html_text(found)


def test_a_wrong_result_on_gpus_alone_is_told_first_and_fails(tmp_path: Path) -> None:
    wrong = Measurement("2026-01-01", "c", "ring4", "allgather", 1024, "feed", "nccl-tests", "wrong", "12 are wrong")
    same = [record(case, time_us=5.0 + place, schedule_us=3.0 + place) for place, case in enumerate(CASES)]
    found = data(tmp_path, same, [wrong])
    assert (found.verdict, found.exit_code) == ("1 thing is worse or wrong", 1)
    assert "Wrong (1)" in html_text(found)
    assert "| wrong | wrong | `ring4/allgather/1KB, nccl-tests` |  | 12 are wrong |" in markdown_text(found)


def test_a_measurement_of_a_file_that_the_run_has_not_is_not_its_own(tmp_path: Path) -> None:
    other = Measurement("2026-01-01", "c", "ring4", "allgather", 1024, "beef", "nccl-tests", "failed", "exit code 3")
    same = [record(case, time_us=5.0 + place, schedule_us=3.0 + place) for place, case in enumerate(CASES)]
    found = data(tmp_path, same, [other])
    assert (found.verdict, found.exit_code, list(found.measurements)) == ("No change", 0, [])


def test_many_changes_are_cut_short(tmp_path: Path) -> None:
    records = [record(case, time_us=50.0, schedule_us=40.0) for case in CASES]
    lines = data(tmp_path, records).lines(most=6)
    assert len(lines) == 7
    assert lines[-1] == "and 12 more lines in the report"


def test_markdown_has_the_changes_and_the_efficiencies(worse: ReportData) -> None:
    text = markdown_text(worse)
    assert text.startswith("## 3 things are worse or wrong\n")
    assert f"| worse | schedule | `{CASES[0]}` | 3 us | 4.5 us (+50.00%) |" in text
    assert "| ring4 | alltoall | 20% | verify failed |" in text
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6, 5}


def test_junit_has_a_failure_for_each_case_that_is_worse_or_wrong(worse: ReportData) -> None:
    root = Tree.fromstring(junit_text(worse))
    (found,) = root
    failed = {case.get("name") for case in found if case.find("failure") is not None}
    assert failed == {CASES[0], BAD, "ring4/allgather/1KB, nccl-tests"}
    skipped = [case.get("name") for case in found if case.find("skipped") is not None]
    assert skipped == ["ring4/allgather/all sizes, nccl-tests"]
    assert (found.get("tests"), found.get("failures"), found.get("skipped")) == ("10", "3", "1")


class Page(HTMLParser):
    """What a page refers to, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset", "poster")]
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def test_the_page_refers_to_nothing_outside_itself(worse: ReportData) -> None:
    text = html_text(worse)
    assert Page(text).links == ["data:,"]
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_the_page_holds_its_data_and_no_text_can_break_out_of_it(worse: ReportData) -> None:
    page = Page(html_text(worse))
    assert len(page.scripts) == 2
    document = json.loads(page.scripts[0])
    by_case = {item["case"]: item for item in document["cases"]}
    assert list(by_case) == [item.case for item in worse.records.values()]
    assert by_case[BAD]["problem"] == NASTY
    assert (by_case[BAD]["change"], by_case[CASES[0]]["change"], by_case[CASES[2]]["change"]) == (
        "wrong",
        "worse",
        "better",
    )
    assert by_case[CASES[0]]["history"] == [[1, 5.0, 0.2], [2, 6.5, 0.2]]
    assert zlib.decompress(base64.b64decode(document["files"]["feed"])).decode() == "<algo/>"
    assert json.loads(zlib.decompress(base64.b64decode(document["timelines"]["feed"])))["span_us"] == 4.0
    assert document["jobs"][by_case[BAD]["job"]]["command"].startswith("synth allgather")


def test_the_same_data_give_the_same_bytes(worse: ReportData) -> None:
    assert html_text(worse) == html_text(worse)


def test_infinite_figures_do_not_spoil_the_page(tmp_path: Path) -> None:
    found = data(tmp_path, [record(CASES[0], gap=float("inf"), bound_us=float("nan"))])
    assert json.loads(Page(html_text(found)).scripts[0])["cases"][0]["gap"] is None


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000"),
    *("--enable-logging=stderr", "--v=0", "--dump-dom"),
)


class Dom:
    """The page as a browser has it after its scripts ran."""

    def __init__(self, page: Path, profile: Path, address: str = "") -> None:
        assert CHROMIUM is not None
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", f"{page.as_uri()}{address}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        self.text = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.text))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
class TestInABrowser:
    @pytest.fixture
    def page(self, worse: ReportData, tmp_path: Path) -> Path:
        path = tmp_path / "report.html"
        path.write_text(html_text(worse), encoding="utf-8")
        return path

    def test_charts_are_drawn_and_the_console_is_silent(self, page: Path, tmp_path: Path) -> None:
        dom = Dom(page, tmp_path / "profile", "#collective=")
        assert dom.console == []
        assert dom.count('<svg[^>]* class="curve"') == 4
        assert dom.count('data-line="synth"') == dom.count('data-line="ring"') == dom.count('data-line="bound"') == 4
        assert dom.count('<tr data-row="') == 4
        assert dom.count(r'<svg[^>]* class="timeline"') == 1
        assert dom.count('<div class="bar">') == 2
        assert "8 of 8 cases" in dom.text
        assert dom.count('<svg[^>]* class="spark"') == 8 + 1
        assert "12 elements are wrong" in dom.text

    @pytest.mark.parametrize(
        ("address", "cases", "curves"),
        [
            ("", 4, 2),
            ("#collective=alltoall&machine=line4", 2, 1),
            ("#collective=&state=changed", 3, 2),
            ("#collective=&state=unanswered", 1, 1),
            ("#collective=&name=ring4+4kb", 2, 2),
            ("#collective=&name=nosuch", 0, 0),
        ],
    )
    def test_filters_choose_cases(self, page: Path, tmp_path: Path, address: str, cases: int, curves: int) -> None:
        dom = Dom(page, tmp_path / "profile", address)
        assert dom.console == []
        assert f"{cases} of 8 cases" in dom.text
        assert dom.count('<svg[^>]* class="curve"') == curves

    def test_a_reader_filters_and_opens_a_case(self, page: Path, tmp_path: Path) -> None:
        """What a hand would do: choose another collective, then click on a cell of the heat map."""
        hand = """<script>
        const select = document.getElementById("by-collective");
        select.value = "alltoall";
        select.dispatchEvent(new Event("input", { bubbles: true }));
        document.querySelector('#heat tr[data-row^="line4"] td').click();
        </script></body>"""
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", hand), encoding="utf-8")
        dom = Dom(page, tmp_path / "profile")
        assert dom.console == []
        assert "4 of 8 cases" in dom.text
        assert '<div id="chosen"><h3>line4/alltoall/1KB/auto/0</h3>' in dom.text

    def test_the_address_opens_a_case_and_follows_what_is_chosen(self, page: Path, tmp_path: Path) -> None:
        hand = """<script>
        document.querySelector('#changed [data-case]').click();
        document.body.dataset.address = location.hash;
        </script></body>"""
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", hand), encoding="utf-8")
        case = CASES[3]
        dom = Dom(page, tmp_path / "profile", f"#collective=alltoall&case={case}")
        assert dom.console == []
        assert f"case={quote(BAD, safe='')}" in dom.text
        page.write_text(page.read_text(encoding="utf-8").replace(hand, "</body>"), encoding="utf-8")
        dom = Dom(page, tmp_path / "profile", f"#collective=alltoall&case={case}")
        assert f'<div id="chosen"><h3>{case}</h3>' in dom.text

    def test_the_xml_that_is_downloaded_is_that_of_the_record(self, page: Path, tmp_path: Path) -> None:
        hand = """<script>
        URL.createObjectURL = (blob) => { blob.text().then((text) => { document.body.dataset.xml = text; }); return "#"; };
        document.querySelector('#all [data-case="ring4/allgather/1KB/auto/0"]').click();
        document.querySelector('#chosen button').click();
        </script></body>"""
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", hand), encoding="utf-8")
        dom = Dom(page, tmp_path / "profile")
        assert dom.console == []
        assert 'data-xml="<algo/>"' in dom.text.replace("&lt;", "<").replace("&gt;", ">")

    @pytest.mark.parametrize(
        ("records", "cases", "curves"),
        [
            ([], 0, 0),
            ([record(CASES[0])], 1, 1),
            ([record(CASES[0], status="failed", problem=NASTY, **NOTHING)], 1, 1),
            ([record(CASES[0]), record(CASES[1], status="no answer", problem="too tight", **NOTHING)], 2, 1),
            ([record(CASES[0], baselines_us={}), record("ring4/allgather/1KB/greedy/7", cut=True)], 2, 2),
        ],
        ids=["nothing", "one case", "only a failure", "one size without an answer", "two strategies"],
    )
    def test_pages_of_little_are_drawn_too(
        self, tmp_path: Path, records: list[Record], cases: int, curves: int
    ) -> None:
        path = tmp_path / "report.html"
        path.write_text(html_text(data(tmp_path, records)), encoding="utf-8")
        dom = Dom(path, tmp_path / "profile")
        assert dom.console == []
        assert f"{cases} of {cases} cases" in dom.text
        assert dom.count('<svg[^>]* class="curve"') == curves
        assert dom.count('<tr data-row="') == curves
        assert ('<div id="chosen">No case is shown.</div>' in dom.text) == (cases == 0)

    def test_a_phone_scrolls_in_one_direction_only(self, page: Path, tmp_path: Path) -> None:
        """Tables and timelines scroll in themselves; the page is as wide as the screen."""
        hand = """<script>
        const page = document.documentElement;
        parent.postMessage(`${innerWidth} wide, ${page.scrollWidth - page.clientWidth} too many`, "*");
        </script></body>"""
        page.write_text(page.read_text(encoding="utf-8").replace("</body>", hand), encoding="utf-8")
        frame = tmp_path / "frame.html"
        frame.write_text(
            f'<iframe src="{page.as_uri()}" style="width:390px;height:800px;border:0"></iframe>'
            "<script>onmessage = (event) => { document.body.dataset.told = event.data; };</script>",
            encoding="utf-8",
        )
        assert 'data-told="390 wide, 0 too many"' in Dom(frame, tmp_path / "profile").text
