"""The metrics of docs/metrics.md that servers of several processes alone have."""

from __future__ import annotations

from engine.broker.metrics.exposition import exposition
from engine.processes.metrics import child_families
from engine.processes.supervision import Supervision
from tests.broker.test_metrics import rows, served


def test_docs_and_server_agree_on_names_and_kinds():
    supervision = Supervision(2)
    supervision.begin(0.0)
    supervision.serves(1, 0.0)
    text = exposition(child_families(supervision))
    assert served(text) == {name: kind for name, kind in rows().items() if name.startswith("engine_process_")}
    assert 'engine_process_serving{process="0"} 0.0' in text.splitlines()
    assert 'engine_process_serving{process="1"} 1.0' in text.splitlines()
