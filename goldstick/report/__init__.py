"""What was done to a network and what it cost: the contents of ``report.json`` and tables for a terminal."""

from goldstick.report.report import LayerRecord, Report, SizeSummary

__all__ = ["LayerRecord", "Report", "SizeSummary"]
