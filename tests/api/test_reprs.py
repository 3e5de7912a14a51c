"""What messages and batches show at a prompt and in a notebook."""

from __future__ import annotations

from xml.etree import ElementTree

import engine


def cells(html: str) -> list[list[str]]:
    """The rows of a table; parsing it shows that nothing a message holds becomes HTML."""
    table = ElementTree.fromstring(html)
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


def test_a_message_shows_key_value_and_properties_cut(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send(b"two espressi", key="table-7", properties={"waiter": "ada"})
        producer.send(b"x" * 5000, properties={"p": "y" * 5000})
    with blocking.stream_consumer("t", "s", initial_position="earliest", schema=engine.Schema.json()) as consumer:
        short, long = (consumer.receive(timeout=30) for _ in range(2))
    assert repr(short) == (
        "<Message topic='topic://public/default/t' segment=0 offset=0 key=b'table-7' value=b'two espressi' "
        "properties={'waiter': 'ada'}>"
    ), "also of a value that the schema cannot read"
    assert f"key=None value={b'x' * 48!r}… (5,000 bytes) properties={{'p': 'yyy" in repr(long)
    assert len(repr(long)) < 500


def test_notebooks_show_tables(blocking: engine.Client):
    with blocking.producer("t") as producer:
        for n in range(20):
            producer.send_nowait(b"<b>%d</b>" % n, key="a&b")
        producer.flush()
        assert ["pending_messages", "0"] in cells(producer.statistics()._repr_html_())
    with blocking.stream_consumer("t", "s", initial_position="earliest") as consumer:
        batch = consumer.receive_batch(timeout=30)
        assert ["messages_received", "20"] in cells(consumer.statistics()._repr_html_())
    rows = cells(batch._repr_html_())
    assert rows[0] == ["key", "value", "segment:offset", "published", "properties"]
    assert rows[1][:3] == ["b'a&b'", "b'<b>0</b>'", "0:0"]
    assert len(rows) == 11
    assert "20 messages of topic://public/default/t, the first 10 of them" in batch._repr_html_()
    assert cells(batch[:0]._repr_html_()) == [rows[0]]
    with blocking.topic_view("t") as view:
        assert cells(view.segments()._repr_html_())[1] == ["0", "0000-ffff", "active", "0", "20", ""]
    assert ["offset", "int64"] in cells(blocking.reader("t")._repr_html_())
