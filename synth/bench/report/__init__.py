"""Reports of a run: an HTML page for people, Markdown for a chat or a pull request, JUnit XML for CI systems."""

from synth.bench.report.data import ReportData, gather
from synth.bench.report.html import html_text
from synth.bench.report.junit import junit_text
from synth.bench.report.markdown import markdown_text

__all__ = ["ReportData", "gather", "html_text", "junit_text", "markdown_text"]
