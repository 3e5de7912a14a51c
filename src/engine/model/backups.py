"""What a broker says of a data directory that it keeps as it was at one moment, for a backup: `Plan`."""

from __future__ import annotations

import msgspec

FORMAT = 1
PLAN_FILE = "plan.json"
METADATA_FILE = "metadata.db"
RESTORING_FILE = "restoring.json"  # in a data directory whose restoration has not ended
READ_SIZE_MAX = 4 << 20  # bytes in one answer


class KeptFile(msgspec.Struct, array_like=True):
    """A file of a segment. `name`: in the segment's directory; `link`: among the kept files."""

    name: str
    link: str


class KeptSegment(msgspec.Struct, omit_defaults=True):
    """The files of a segment, and where its log ended.

    `directory`: below the data directory. `logs`: the log files, the oldest first. `others`: files beside them. `end`:
    the first offset behind the log, whatever was appended later; None: the log is damaged, and its files are copied as
    they are. `sealed`: whether the log was sealed.
    """

    topic: str
    directory: str
    logs: list[KeptFile]
    others: list[KeptFile] = []
    end: int | None = None
    sealed: bool = False


class Plan(msgspec.Struct):
    """All that is kept. `version`: of the metadata. `store`, `generation`: their identity."""

    format: int
    engine: str
    version: int
    store: str
    generation: int
    topics: int
    taken_ms: int
    segments: list[KeptSegment]
