"""Every number that bounds something, and the check that the numbers agree.

Sizes are bytes, times seconds, unless the name says otherwise. Numbers that stand on disk or on the wire are
marked "do not change".
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# One message, one entry (docs/formats/entry.md).
MESSAGE_SIZE_MAX = 5 * MIB
ENTRY_SIZE_MAX = 8 * MIB
ENTRY_MESSAGES_MAX = 65_535
KEY_SIZE_MAX = 64 * KIB
PROPERTIES_SIZE_MAX = 64 * KIB
PRODUCER_NAME_SIZE_MAX = 256
RECIPIENTS_MAX = 64  # public keys that an entry is encrypted for
RECIPIENT_NAME_SIZE_MAX = 256
WRAPPED_KEY_SIZE_MAX = 1024  # RSA of 8,192 bits
# What encryption may add to an entry: its envelope with a copy of the deliver-at times, and the tag.
ENVELOPE_SIZE_MAX = 1 * KIB + 8 * 65_535 + RECIPIENTS_MAX * (RECIPIENT_NAME_SIZE_MAX + WRAPPED_KEY_SIZE_MAX + 32)
ENTRY_HEADER_SIZE = 128  # on disk: do not change
ENTRY_ALIGNMENT = 8  # on disk: do not change

# The hash rings (semantics 1 to 3).
HASH_RING_SIZE = 0x10000
BUCKETS_PER_SEGMENT_MAX = 1024
SEGMENTS_PER_TOPIC_MAX = 1024  # active segments
LAYOUT_SIZE_MAX = 640 * KIB  # a topic's record in JSON, with its sealed segments

# Names.
NAME_SIZE_MAX = 255

# The wire (docs/formats/wire.md).
FRAME_SIZE_MAX = 16 * MIB
FRAME_HEADER_SIZE_MAX = 1 * MIB
FRAME_PREFIX_SIZE = 9  # u32 length, u8 type, u32 header length; on the wire: do not change
FRAME_ALIGNMENT = 8  # on the wire: do not change
HANDSHAKE_S_MAX = 10.0
KEEP_ALIVE_S = 30.0

# The segment log (docs/formats/log.md).
LOG_FILE_SIZE_MAX = 256 * MIB
LOG_FILE_MESSAGES_MAX = 1 << 24  # on disk: do not lower; a log goes on so far above the file that a power cut ended
LOG_COMMIT_BYTES_MAX = 64 * MIB
LOG_INDEX_BYTES_STEP = 64 * KIB
READ_BLOCK_SIZE = 1 * MIB

# The log of objects (docs/formats/objects.md).
WAL_FLUSH_BYTES = 4 * MIB  # an object of this size takes no more groups, and is sent at once
WAL_WINDOW = 8  # objects that are sent and not acknowledged
WAL_FENCES = 16  # names at which a FENCE is PUT at once
WAL_FOOTERS_STEP = 64  # objects; the last of so many has the footers of those before it; in the format: do not change
WAL_FOOTERS_SIZE_MAX = 4 * MIB  # of those; older ones are left out
OBJECT_CHUNK_SIZE = 4 * MIB  # of a rolled file's object, read by one request
OBJECT_READ_MIN = 1 * MIB  # a range of less is not worth the requests by which a client reads objects itself
OBJECT_SHARED_FILE_MAX = 256 * KIB  # a rolled file up to this size may share its object with those of other segments
OBJECT_SHARED_SIZE_MAX = 8 * MIB  # of such an object
OBJECT_RECORD_FILES_SIZE_MAX = 48 * KIB  # of a segment's record: when its files need more, older ones go to an index
WAL_PENDING_MAX = 128 * MIB  # groups that are not acknowledged

# Batching and flow (client).
BATCH_BYTES_MAX = 128 * KIB
BATCH_MESSAGES_MAX = 10_000
BATCH_DELAY_S_MAX = 0.001
REQUEST_TIMEOUT_S = 30.0  # for the reply to a request
REQUESTS_MAX = 10_000  # of one client that wait for their replies
RESPONDERS_MAX = 64  # producers of replies that a client keeps, one for each client that has sent requests
PENDING_BYTES_MAX = 64 * MIB
RECEIVE_QUEUE_MESSAGES = 100_000
RECEIVE_QUEUE_BYTES = 32 * MIB
CLIENT_MEMORY_MAX = 256 * MIB
OPERATION_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 30.0

# Flow (broker).
CONNECTION_WRITE_HIGH = 4 * MIB
CONNECTION_WRITE_LOW = 1 * MIB
PUBLISH_BYTES_IN_FLIGHT_MAX = 256 * MIB
READ_CACHE_MAX = 64 * MIB
LOG_CACHE_MIN = 64 * MIB  # of log files in the page cache, by default
READS_IN_FLIGHT_MAX = 256 * MIB
RECEIVE_BUFFERS_MAX = 256 * MIB
SCARCE_BLOCK_SIZE = 64 * KIB  # sent to one consumer at a time while the broker's buffers are full
BODY_SIZE_MAX = 8 * MIB  # of one request of the admin API
BODIES_MAX = 64 * MIB  # all request bodies of the admin API together
CONNECTIONS_MAX = 10_000
HTTP_CONNECTIONS_MAX = 1_000  # of the admin API
METRICS_SEGMENTS_MAX = 2_000  # closed segments with series of their own, 2 kB and more of text each
HTTP_HEAD_S_MAX = 20.0  # for the head of a request; longer than clients keep idle connections for the next one (15 s)
HTTP_BODY_S_MAX = 30.0  # for the body of a request
ATTACHMENTS_MAX = 100_000  # producers and consumers of one broker, 10 kB and more each
ATTACHMENTS_PER_CONNECTION_MAX = 20_000
LOOKUPS_MAX = 50_000
REPLY_TOPIC_IDLE_S = 120.0  # without a client, until a broker deletes a topic of replies
REPLY_RETENTION_S = 60.0  # of replies that were read
REPLY_BYTES_MAX = 64 * MIB  # of replies, per segment; older ones go
TOPIC_LOADS_MAX = 5_000
TOPIC_LOAD_S_MAX = 60.0  # to wait for its turn

# Control (docs/configuration.md).
CONSUMER_GRACE_S = 60.0
CONTROLLER_IDLE_S = 60.0
AUTO_SCALE_INTERVAL_S = 60.0
LOAD_REPORT_INTERVAL_S = 10.0
LOAD_REPORT_CHANGE = 0.25
AUTO_SCALE_QUIET_S = 0.1  # consumers that join at most this far apart count as one burst, for at most
AUTO_SCALE_BURST_S_MAX = 1.0
AUTO_SCALE_HISTORY_MAX = 64  # decisions about a topic that its leader remembers
LOAD_WINDOW_S = 60.0  # over which the rates of a load report are averaged
RESUME_S_MIN = 0.1  # the first pause after an unfinished change failed again; doubled each time, up to
RESUME_S_MAX = 2.0
DRAIN_ASK_S = 1.0  # the first consumer of a subscription waits this long for owners of sealed segments
DRAIN_RECHECK_S = 5.0  # a watch for the end of a sealed segment's backlog is renewed this often
ENTRY_BUCKETS_DEFAULT = 4
RETENTION_S_DEFAULT = 7 * 24 * 3600.0
RETENTION_ROUND_S = 30.0  # between two looks at open segments: what is past its time waits for two of them at most
RETENTION_RETRY_S = 86_400.0  # a closed segment of which nothing could go is not opened again for so long
RETENTION_PARTS = 32  # of the retention time: one file holds messages of at most one part, or of ...
RETENTION_SPAN_S_MIN = 60.0  # ... so long where that is more
RETENTION_UNREAD_SPAN_S_MIN = 3600.0  # likewise, while no subscription has acknowledged anything in it

# Topic lists.
TOPIC_PATTERN_SIZE_MAX = 1024  # characters
TOPIC_PATTERN_MEMORY_MAX = 1 * MIB  # of a compiled pattern
TOPICS_PER_FRAME_MAX = 1_000  # a longer list takes several frames
TOPIC_LIST_MEMORY_MAX = 100 * MIB  # lists being assembled, and again their bytes on the way out (PIP-442)
TOPIC_LIST_TIMEOUT_S = 25.0  # to wait for a permit
TOPIC_LIST_QUEUE_MAX = 1_000
TOPIC_LIST_TAKEN_S_MAX = 30.0  # for a peer to take a part, and a second more for each so many bytes queued for it:
TOPIC_LIST_TAKEN_RATE_MIN = 16 * KIB
TOPIC_LIST_INITIAL_SIZE = 64 * KIB  # permit of a frame of a list before it is known; larger ones are seldom made
TOPIC_LISTS_PER_CONNECTION_MAX = 1_000
TOPIC_LIST_PARTS_MAX = 16 * MIB  # packed parts of lists, kept for requests of the same list
TOPIC_CHANGES_KEPT = 16_384  # per namespace; a client further behind gets the whole list again

# The proxy.
PROXY_WRITE_HIGH = 256 * KIB  # queued for one side; above it the other side is not read
PROXY_WRITE_LOW = 64 * KIB
PROXY_ANSWER_S_MAX = 60.0  # for a broker to answer a request for a list; its permit goes back then
PROXY_STALL_S_MAX = 120.0  # for a client to take data that is queued above the mark, or a part of a list
PROXY_BROKERS_MAX = 10_000  # named by brokers
PROXY_LIST_REQUESTS_MAX = 100  # for topic lists, under way on one connection
PROXY_LIST_REQUEST_SIZE_MAX = 128 * KIB
PROXY_LISTS_ASIDE_MAX = 512 * KIB  # of parts that wait for memory; above it nothing is read from the broker

# Schemas of a topic's values.
SCHEMA_SIZE_MAX = 16 * KIB  # of one definition, in JSON
SCHEMA_VERSIONS_MAX = 32
SCHEMA_DEPTH_MAX = 64  # of types, and of a default's values, inside each other in one definition
SCHEMA_TYPES_MAX = 2_000  # that a definition uses, each use counted
SCHEMA_NAMES_MAX = 256  # of records, enumerations and fixed in one definition
SCHEMA_FIELDS_MAX = 1_000  # of one record
SCHEMA_BRANCHES_MAX = 256  # of one union
SCHEMA_SYMBOLS_MAX = 2_000  # of one enumeration
SCHEMA_STEPS_MAX = 10_000  # comparisons of types and fields that decide whether one definition reads another
SCHEMA_EMPTY_TYPES_MAX = 100  # in an Avro value that takes no byte: what such a value becomes
SCHEMA_VALUE_DEPTH_MAX = 1_000  # of types inside each other in one value of a type that contains itself
SCHEMA_ERROR_SIZE_MAX = 400  # characters of what a library says of a definition

# Transactions (docs/transactions.md).
TRANSACTION_TIMEOUT_S = 60.0
TRANSACTION_TIMEOUT_S_MIN = 0.001
TRANSACTION_TIMEOUT_S_MAX = 24 * 3600.0
TRANSACTION_RETENTION_S = 60.0  # after its end
TRANSACTION_NAMED_RETENTION_S = 7 * 24 * 3600.0  # of a committed one, which a replayed job may request by its name

# Metadata.
METADATA_VALUE_SIZE_MAX = 1 * MIB  # larger images are cut into pieces (storage/cursor/pieces.py)
METADATA_KEY_SIZE_MAX = 8 * KIB
METADATA_CHANGES_MAX = 16_384  # remembered for watches that resume
METADATA_COMMIT_WRITES_MAX = 4_096
METADATA_WRITE_ALL_MAX = 256  # writes per call
METADATA_ALSO_MAX = 16  # other keys whose states one write demands


def check() -> None:
    """Raise if two limits contradict each other. Runs when the module loads."""
    agreements = {
        "one commit holds what one call writes": METADATA_COMMIT_WRITES_MAX >= METADATA_WRITE_ALL_MAX,
        "an encrypted entry holds the largest message with its key": ENTRY_SIZE_MAX - ENVELOPE_SIZE_MAX
        > MESSAGE_SIZE_MAX + KEY_SIZE_MAX + PROPERTIES_SIZE_MAX + ENTRY_HEADER_SIZE,
        "a frame holds the largest entry": FRAME_SIZE_MAX > ENTRY_SIZE_MAX + FRAME_HEADER_SIZE_MAX,
        "a log file holds several of the largest entries": LOG_FILE_SIZE_MAX >= 8 * ENTRY_SIZE_MAX,
        "a fence is PUT at more names than a session has objects in flight": WAL_FENCES > WAL_WINDOW,
        "what waits for acknowledgement holds a whole window": WAL_PENDING_MAX >= (WAL_WINDOW + 1) * WAL_FLUSH_BYTES,
        "a commit holds the largest entry": LOG_COMMIT_BYTES_MAX >= ENTRY_SIZE_MAX,
        "a layout with its owners' addresses fits a frame's header": FRAME_HEADER_SIZE_MAX
        >= LAYOUT_SIZE_MAX + SEGMENTS_PER_TOPIC_MAX * NAME_SIZE_MAX,
        "a layout fits a record": LAYOUT_SIZE_MAX <= METADATA_VALUE_SIZE_MAX,
        "a topic's schemas fit a record": 2 * SCHEMA_VERSIONS_MAX * SCHEMA_SIZE_MAX <= METADATA_VALUE_SIZE_MAX,
        "a record fits a frame several times": FRAME_SIZE_MAX >= 8 * METADATA_VALUE_SIZE_MAX,
        "a schema's parts fit it": max(SCHEMA_FIELDS_MAX, SCHEMA_BRANCHES_MAX, SCHEMA_NAMES_MAX) <= SCHEMA_TYPES_MAX,
        "a definition can be compared with itself": SCHEMA_STEPS_MAX >= 4 * SCHEMA_TYPES_MAX,
        "a topic's schemas fit a frame's header": 2 * SCHEMA_VERSIONS_MAX * SCHEMA_SIZE_MAX <= FRAME_HEADER_SIZE_MAX,
        "a part of a topic list fits a frame's header": FRAME_HEADER_SIZE_MAX
        >= TOPICS_PER_FRAME_MAX * (4 * NAME_SIZE_MAX),
        "a request for a topic list fits what a proxy takes": PROXY_LIST_REQUEST_SIZE_MAX
        >= PROPERTIES_SIZE_MAX + 4 * TOPIC_PATTERN_SIZE_MAX + 8 * NAME_SIZE_MAX,
        "a proxy's broker answers before its permit goes back": PROXY_ANSWER_S_MAX > 2 * TOPIC_LIST_TIMEOUT_S,
        "a proxy waits longer for a client than its broker does": PROXY_STALL_S_MAX > 2 * KEEP_ALIVE_S,
        "the proxy's write marks are ordered": PROXY_WRITE_LOW < PROXY_WRITE_HIGH,
        "a batch fits an entry": BATCH_BYTES_MAX <= ENTRY_SIZE_MAX,
        "a batch's count fits an entry": BATCH_MESSAGES_MAX <= ENTRY_MESSAGES_MAX,
        "pending bytes hold the largest entry": PENDING_BYTES_MAX >= ENTRY_SIZE_MAX,
        "a consumer's window holds the largest entry": RECEIVE_QUEUE_BYTES >= ENTRY_SIZE_MAX,
        "the write marks are ordered": CONNECTION_WRITE_LOW < CONNECTION_WRITE_HIGH,
        "alignments are powers of two": all(
            n & (n - 1) == 0 for n in (ENTRY_ALIGNMENT, FRAME_ALIGNMENT, ENTRY_HEADER_SIZE)
        ),
    }
    for sentence, holds in agreements.items():
        if not holds:
            raise AssertionError(f"limits disagree: {sentence}")


check()
