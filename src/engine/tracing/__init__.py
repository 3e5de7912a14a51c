"""Spans of what a program sends, receives, handles and settles, by OpenTelemetry's conventions for messaging.

Nothing is loaded, and nothing costs, unless the program has set a provider of traces before it makes a producer or a
consumer: then that object's class is one that makes spans as well (`wrapped.py`); `spans.py` says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.lazy import loader

if TYPE_CHECKING:
    from engine.tracing.logs import TraceIds
else:
    __getattr__ = loader(__name__, {"engine.tracing.logs": "TraceIds"})

__all__ = ["TraceIds", "trace"]


def trace(made: Any) -> None:
    """Have a producer or a consumer (nothing else does) make spans from now on, if there is a provider of traces."""
    from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_tracer_provider

    if not isinstance(get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider):
        from engine.tracing.wrapped import wrap

        wrap(made)
