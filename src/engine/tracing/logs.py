"""`TraceIds`: lines of a log carry the trace that they belong to."""

from __future__ import annotations

import logging

from opentelemetry import trace


class TraceIds(logging.Filter):
    """Gives each record a `trace_id` and a `span_id`, in hexadecimal digits; "" outside of a span.

    Add it to a handler: its format may then use `%(trace_id)s`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Of every record."""
        at = trace.get_current_span().get_span_context()
        record.trace_id = trace.format_trace_id(at.trace_id) if at.is_valid else ""
        record.span_id = trace.format_span_id(at.span_id) if at.is_valid else ""
        return True
