"""The admin API as a table: one row per operation, from which everything else about it is derived.

`tools/generate_admin.py` writes the typed methods (`model/admin_methods.py`, `sync/admin.py`); routes and the
description of the API (`broker/`), the HTTP client (`client/`) and forwarding to leaders read the rows when they run.
"""

from __future__ import annotations

from typing import Any

from engine.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnsupportedError,
)
from engine.limits import BUCKETS_PER_SEGMENT_MAX, SEGMENTS_PER_TOPIC_MAX
from engine.model import admin_answers as answers
from engine.model.admin_backup_operations import BACKUP_OPERATIONS
from engine.model.admin_broker_operations import BROKER_OPERATIONS
from engine.model.admin_cluster_operations import CLUSTER_OPERATIONS
from engine.model.admin_dictionaries import TopicMetadata, TopicStatistics
from engine.model.admin_limit_operations import LIMIT_OPERATIONS
from engine.model.admin_parameters import (
    KINDS,
    POSITIONS,
    Choice,
    Flag,
    Instant,
    Namespace,
    Offset,
    Overrides,
    Parameter,
    Policies,
    Properties,
    Seconds,
    Segment,
    SegmentText,
    Subscription,
    Subscriptions,
    Topic,
    TopicPolicies,
    Transaction,
    Where,
    Whole,
)
from engine.model.admin_requests import Leader, Operation, OverridesResult, Result
from engine.model.admin_rights_operations import RIGHTS_OPERATIONS
from engine.model.layout import KEY_HASHES
from engine.model.policies import DURABILITIES

LIST_DEFAULT = 1_000  # transactions in one answer
LIST_MAX = 10_000

_TOPIC_PATH = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION_PATH = _TOPIC_PATH + "/subscriptions/{subscription}"
_SEGMENT_PATH = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
_NAMESPACE_PATH = "/admin/v2/namespaces/{tenant}/{namespace}"
_TRANSACTIONS_PATH = "/admin/v2/transactions"

# What parts of paths are.
PARTS = {
    "tenant": "",
    "namespace": "",
    "topic": "the local name",
    "subscription": "",
    "segment": "a segment's id",
    "other": "the other segment's id",
    "descriptor": "start-end-id, as in 0000-7fff-1",
    "transaction": "its id, 16 hexadecimal digits",
    "resource": "tenant, tenant/namespace, tenant/namespace/topic, or * for the cluster; / as %2F",
    "role": "",
    "backup": "its number, as begin_backup says it",
    "limited": "resource, or role:NAME; / as %2F",
    "name": "a key of the configuration, or the specification's name of it",
    "value": "a number, or text with a unit",
}

_TOPIC = Parameter("topic", Topic(), Where.PATH)
_SEGMENT = Parameter("segment", Segment(), Where.PATH)
_NAMESPACE = Parameter("namespace", Namespace(), Where.PATH)
_SUBSCRIPTION = Parameter("subscription", Subscription(), Where.PATH)
_SEGMENT_ID = Parameter("segment_id", Whole(), Where.PATH, "segment")
_TRANSACTION = Parameter("ident", Transaction(), Where.PATH, "transaction")
_OVERRIDES = Parameter("policy", Overrides(), Where.BODY)
_OWN = Parameter(
    "own", Flag(), Where.QUERY, default=False, keyword=True, says="only what it says itself, null for nothing"
)

_NOTHING = Result[None]("None", type(None))
_METADATA = Result[TopicMetadata]("TopicMetadata", dict, answers.TopicMetadata)
_POLICIES = Result[dict[str, Any]]("dict[str, Any]", dict, answers.NamespacePolicy)
_OVERRIDDEN = OverridesResult("dict[str, Any]", dict, answers.AutoScaleOverrides)

_FOR_REPAIRS = "For repairs: what the topic's layout does not call for is refused."

# -- topics ----------------------------------------------------------------------------------------------------------

CREATE_TOPIC = Operation(
    name="create_topic",
    http=f"PUT {_TOPIC_PATH}",
    parameters=(
        _TOPIC,
        Parameter("segments", Whole(1, SEGMENTS_PER_TOPIC_MAX), Where.FIELD, default=None, keyword=True),
        Parameter("properties", Properties(), Where.FIELD, default=None, keyword=True),
        Parameter("key_hash", Choice(KEY_HASHES), Where.FIELD, "keyHash", default=None, keyword=True),
        Parameter("durability", Choice(DURABILITIES), Where.FIELD, default=None, keyword=True),
        Parameter(
            "entry_buckets", Whole(1, BUCKETS_PER_SEGMENT_MAX), Where.FIELD, "entryBuckets", default=None, keyword=True
        ),
        Parameter("auto_scale", Overrides(), Where.FIELD, "autoScalePolicy", default=None, keyword=True),
    ),
    result=_NOTHING,
    summary="Create a topic of `segments` equal hash ranges.",
    details="""
    `properties`: text to text. `key_hash`: "xxh64", "murmur3" or "murmur3-low", which cannot be changed later.
    `durability`: what an acknowledgement means: "fsync", "interval" or "os". `entry_buckets`: over the whole topic.
    Defaults are those of the namespace's policies, then of the broker's configuration: out of the box 1 segment,
    "xxh64", "fsync" and 4 entry buckets. `auto_scale`: as of `set_auto_scale_policy`. Raises AlreadyExistsError,
    InvalidArgumentError, UnsupportedError.
    """,
    errors=(AlreadyExistsError, InvalidArgumentError, UnsupportedError),
)

DELETE_TOPIC = Operation(
    name="delete_topic",
    http=f"DELETE {_TOPIC_PATH}",
    parameters=(_TOPIC,),
    result=_NOTHING,
    summary="Delete a topic with its messages and subscriptions.",
    errors=(NotFoundError,),
    leader=Leader.NEEDED,
)

LIST_TOPICS = Operation(
    name="list_topics",
    http="GET /admin/v2/scalable/{tenant}/{namespace}",
    parameters=(
        Parameter("namespace", Namespace(), Where.PATH, default="public/default"),
        Parameter(
            "properties",
            Properties(),
            Where.QUERY,
            "property",
            default=None,
            says="name=value; only topics that have it; repeatable",
        ),
    ),
    result=Result[list[str]]("list[str]", list, list[str]),
    summary="The full names of a namespace's topics, sorted.",
    details="`properties`: only those topics that have all of them.",
)

GET_METADATA = Operation(
    name="get_metadata",
    http=f"GET {_TOPIC_PATH}",
    parameters=(_TOPIC,),
    result=_METADATA,
    summary="The topic's layout and properties: the specification's JSON as a dict.",
    errors=(NotFoundError,),
)

GET_STATS = Operation(
    name="get_stats",
    http=f"GET {_TOPIC_PATH}/stats",
    parameters=(_TOPIC,),
    result=Result[TopicStatistics]("TopicStatistics", dict, answers.TopicNumbers),
    summary="Segments, rates, subscriptions, consumers, auto-scale: the specification's JSON as a dict.",
    errors=(NotFoundError,),
    leader=Leader.PREFERRED,
)

SET_TOPIC_PROPERTIES = Operation(
    name="set_topic_properties",
    http=f"PUT {_TOPIC_PATH}/properties",
    parameters=(_TOPIC, Parameter("properties", Properties(), Where.BODY)),
    result=_NOTHING,
    summary="Replace the properties of a topic: text to text. Consumers that choose topics by them follow.",
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
)

GET_TOPIC_POLICIES = Operation(
    name="get_topic_policies",
    http=f"GET {_TOPIC_PATH}/policies",
    parameters=(_TOPIC, _OWN),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.TopicPolicy),
    summary="The policies in effect for a topic: retention_time_s, retention_size_bytes, message_ttl_s; -1: no limit.",
    details="""
    And encryption_required, flush_interval_ms (of durability "object"). Each is the topic's own, else the namespace's,
    else the broker's. `own`: only what the topic says itself, None where it says nothing. Raises NotFoundError.
    """,
    errors=(NotFoundError,),
)

SET_TOPIC_POLICIES = Operation(
    name="set_topic_policies",
    http=f"PATCH {_TOPIC_PATH}/policies",
    parameters=(_TOPIC, Parameter("policies", TopicPolicies(), Where.BODY)),
    result=_NOTHING,
    summary="Set these policies of a topic; None leaves one to the namespace again. What is not named stays.",
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
)

REMOVE_TOPIC_POLICIES = Operation(
    name="remove_topic_policies",
    http=f"DELETE {_TOPIC_PATH}/policies",
    parameters=(_TOPIC,),
    result=_NOTHING,
    summary="Leave all policies of a topic to its namespace.",
    errors=(NotFoundError,),
    leader=Leader.NEEDED,
    leader_call=("set_topic_policies", {"policies": None}),
)

# -- the shape of a topic --------------------------------------------------------------------------------------------

SPLIT_SEGMENT = Operation(
    name="split_segment",
    http=f"POST {_TOPIC_PATH}/split/{{segment}}",
    parameters=(_TOPIC, _SEGMENT_ID),
    result=_METADATA,
    summary="Split an active segment's hash range in two halves, while the topic is in use; the new metadata.",
    details="""
    Producers and consumers follow by themselves. Raises NotFoundError (topic), and InvalidArgumentError when the
    segment is unknown, sealed or of one hash value: then nothing has changed.
    """,
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
    no_fields=True,
)

MERGE_SEGMENTS = Operation(
    name="merge_segments",
    http=f"POST {_TOPIC_PATH}/merge/{{segment}}/{{other}}",
    parameters=(_TOPIC, _SEGMENT_ID, Parameter("other_id", Whole(), Where.PATH, "other")),
    result=_METADATA,
    summary="Merge two active segments whose hash ranges are neighbours; the new metadata.",
    details="""
    Raises NotFoundError (topic), and InvalidArgumentError when one is unknown or sealed, or they are not neighbours:
    then nothing has changed.
    """,
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
    no_fields=True,
)

REBUCKET_SEGMENT = Operation(
    name="rebucket_segment",
    http=f"POST {_TOPIC_PATH}/rebucket/{{segment}}",
    parameters=(
        _TOPIC,
        _SEGMENT_ID,
        Parameter("buckets", Whole(1, BUCKETS_PER_SEGMENT_MAX), Where.QUERY_OR_FIELD, says="here or in the body"),
    ),
    result=_METADATA,
    summary="Replace an active segment by one of the same range with `buckets` entry buckets; the new metadata.",
    details="""
    Raises NotFoundError (topic), and InvalidArgumentError when it is unknown or sealed, or has that many already.
    """,
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
)

# -- single segments -------------------------------------------------------------------------------------------------

CREATE_SEGMENT = Operation(
    name="create_segment",
    http=f"PUT {_SEGMENT_PATH}",
    parameters=(_SEGMENT, Parameter("subscriptions", Subscriptions(), Where.BODY, default=())),
    result=_NOTHING,
    summary="Make what is missing of an active segment: its store, and cursors for these subscriptions of the topic.",
    details=f"""
    `segment`: its whole name, "segment://tenant/namespace/topic/0000-7fff-1". {_FOR_REPAIRS}
    Raises NotFoundError, and InvalidArgumentError unless the layout has it as active.
    """,
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
)

TERMINATE_SEGMENT = Operation(
    name="terminate_segment",
    http=f"POST {_SEGMENT_PATH}/terminate",
    parameters=(_SEGMENT,),
    result=_NOTHING,
    summary="Seal a segment that a change under way seals; a sealed one stays as it is.",
    details=f"""
    {_FOR_REPAIRS}
    Raises NotFoundError, and InvalidArgumentError for any other segment: splits and merges seal segments.
    """,
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
    no_fields=True,
)

DELETE_SEGMENT = Operation(
    name="delete_segment",
    http=f"DELETE {_SEGMENT_PATH}",
    parameters=(
        _SEGMENT,
        Parameter("force", Flag(), Where.QUERY, default=False, says="also when it is not drained"),
    ),
    result=_NOTHING,
    summary="Delete a segment that the layout does not name, or a sealed one that every subscription has drained.",
    details=f"""
    {_FOR_REPAIRS}
    `force`: a sealed one also when it is not drained; subscriptions lose the messages that they have not read. Raises
    NotFoundError (topic), InvalidArgumentError when it is active or has parents that are still there.
    """,
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
)

GET_SEGMENT_STATS = Operation(
    name="get_segment_stats",
    http=f"GET {_SEGMENT_PATH}/stats",
    parameters=(_SEGMENT,),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.SegmentDetails),
    summary="One segment's numbers, asked of its owner: offsets, size, owner, and each subscription's part in it.",
    details="""
    Raises NotFoundError when the topic, or its layout, has no such segment.
    """,
    errors=(NotFoundError,),
)

# -- subscriptions ---------------------------------------------------------------------------------------------------

CREATE_SUBSCRIPTION = Operation(
    name="create_subscription",
    http=f"PUT {_SUBSCRIPTION_PATH}",
    parameters=(
        _TOPIC,
        _SUBSCRIPTION,
        Parameter(
            "initial_position", Choice(POSITIONS), Where.FIELD, "initialPosition", default="latest", keyword=True
        ),
        Parameter("kind", Choice(KINDS), Where.FIELD, default=None, keyword=True),
    ),
    result=_NOTHING,
    summary='Create a subscription, at "earliest" or "latest".',
    details="""
    `kind`: "stream" or "queue", which statistics show before its first consumer comes; None: not known yet. Raises
    AlreadyExistsError, NotFoundError.
    """,
    errors=(AlreadyExistsError, NotFoundError),
    leader=Leader.NEEDED,
)

DELETE_SUBSCRIPTION = Operation(
    name="delete_subscription",
    http=f"DELETE {_SUBSCRIPTION_PATH}",
    parameters=(_TOPIC, _SUBSCRIPTION),
    result=_NOTHING,
    summary="Delete a subscription in every segment, sealed ones too. Its consumers get NotFoundError.",
    errors=(NotFoundError,),
    leader=Leader.NEEDED,
)

SEEK_SUBSCRIPTION = Operation(
    name="seek_subscription",
    http=f"POST {_SUBSCRIPTION_PATH}/seek",
    parameters=(_TOPIC, _SUBSCRIPTION, Parameter("when", Instant(), Where.FIELD)),
    result=_NOTHING,
    summary="Move a subscription: to the earliest or latest message, or to the first one published since an instant.",
    details="""
    `when`: "earliest", "latest", or an aware datetime (semantics 38). Raises NotFoundError.
    """,
    errors=(NotFoundError,),
    leader=Leader.NEEDED,
)

CLEAR_BACKLOG = Operation(
    name="clear_backlog",
    http=f"POST {_SUBSCRIPTION_PATH}/clear-backlog",
    parameters=(_TOPIC, _SUBSCRIPTION),
    result=_NOTHING,
    summary="Acknowledge everything that a subscription has not acknowledged.",
    errors=(NotFoundError,),
    leader=Leader.NEEDED,
)

SKIP_MESSAGES = Operation(
    name="skip_messages",
    http=f"POST {_SUBSCRIPTION_PATH}/skip",
    parameters=(
        _TOPIC,
        _SUBSCRIPTION,
        Parameter("segment_id", Whole(), Where.FIELD, "segment"),
        Parameter("first", Offset(), Where.FIELD),
        Parameter("last", Offset(), Where.FIELD, default=None, same_as="first"),
    ),
    result=_NOTHING,
    summary="Acknowledge the offsets `first` to `last` of one segment, as those of a bad entry that consumers stop at.",
    details="""
    `last`: None is `first`. Consumers go on behind it. Raises NotFoundError, InvalidArgumentError,
    TransactionConflictError.
    """,
    errors=(NotFoundError, InvalidArgumentError, TransactionConflictError),
    leader=Leader.NEEDED,
)

# -- transactions ----------------------------------------------------------------------------------------------------

LIST_TRANSACTIONS = Operation(
    name="list_transactions",
    http=f"GET {_TRANSACTIONS_PATH}",
    parameters=(
        Parameter(
            "open_longer_than",
            Seconds(),
            Where.QUERY,
            "openLongerThan",
            default=None,
            keyword=True,
            says="seconds; only those that are at least so old",
        ),
        Parameter(
            "segment",
            SegmentText(),
            Where.QUERY,
            default=None,
            keyword=True,
            says="segment://…; only those with operations in it",
        ),
        Parameter(
            "limit",
            Whole(1, LIST_MAX),
            Where.QUERY,
            default=None,
            keyword=True,
            says=f"the oldest so many; {LIST_DEFAULT} if it is missing",
        ),
    ),
    result=Result[list[dict[str, Any]]]("list[dict[str, Any]]", list, list[answers.TransactionFacts]),
    summary=f"The open transactions, the oldest first: the oldest `limit`, out of the box {LIST_DEFAULT:,}.",
    details="""
    `open_longer_than`: only those that are at least so many seconds old. `segment`: "segment://…", only those with
    operations in it.
    """,
)

GET_TRANSACTION = Operation(
    name="get_transaction",
    http=f"GET {_TRANSACTIONS_PATH}/{{transaction}}",
    parameters=(_TRANSACTION,),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.TransactionDetails),
    summary="How a transaction stands, and where it has operations that did not take effect yet.",
    errors=(TransactionNotFoundError,),
)

ABORT_TRANSACTION = Operation(
    name="abort_transaction",
    http=f"POST {_TRANSACTIONS_PATH}/{{transaction}}/abort",
    parameters=(_TRANSACTION,),
    result=_NOTHING,
    summary="Abort a transaction that is open.",
    details="Raises TransactionNotFoundError, TransactionConflictError when it was committed.",
    errors=(TransactionNotFoundError, TransactionConflictError),
)

# -- namespaces ------------------------------------------------------------------------------------------------------

LIST_NAMESPACES = Operation(
    name="list_namespaces",
    http="GET /admin/v2/namespaces",
    parameters=(),
    result=Result[list[str]]("list[str]", list, list[str]),
    summary='Every "tenant/namespace" with a topic, or with policies of its own, sorted.',
)

GET_NAMESPACE_POLICIES = Operation(
    name="get_namespace_policies",
    http=f"GET {_NAMESPACE_PATH}/policies",
    parameters=(_NAMESPACE, _OWN),
    result=_POLICIES,
    summary="The policies in effect for a namespace.",
    details="""
    retention_time_s, retention_size_bytes, message_ttl_s, encryption_required, flush_interval_ms, durability,
    auto_create_topics. -1 is without limit. Each is the namespace's, else the broker's. `own`: only what the namespace
    says itself, None where it says nothing.
    """,
)

SET_NAMESPACE_POLICIES = Operation(
    name="set_namespace_policies",
    http=f"PATCH {_NAMESPACE_PATH}/policies",
    parameters=(_NAMESPACE, Parameter("policies", Policies(), Where.BODY)),
    result=_NOTHING,
    summary="Set these policies of a namespace; None leaves one to the broker again. What is not named stays.",
    errors=(InvalidArgumentError,),
)

REPLACE_NAMESPACE_POLICIES = Operation(
    name="replace_namespace_policies",
    http=f"PUT {_NAMESPACE_PATH}/policies",
    parameters=(_NAMESPACE, Parameter("policies", Policies(), Where.BODY)),
    result=_NOTHING,
    summary="Replace all policies of a namespace: each must be named, None leaves it to the broker.",
    errors=(InvalidArgumentError,),
)

REMOVE_NAMESPACE_POLICIES = Operation(
    name="remove_namespace_policies",
    http=f"DELETE {_NAMESPACE_PATH}/policies",
    parameters=(_NAMESPACE,),
    result=_NOTHING,
    summary="Leave all policies of a namespace to the broker.",
)

# -- auto-scale ------------------------------------------------------------------------------------------------------

SET_AUTO_SCALE_POLICY = Operation(
    name="set_auto_scale_policy",
    http=f"PUT {_TOPIC_PATH}/autoScalePolicy",
    parameters=(_TOPIC, _OVERRIDES),
    result=_NOTHING,
    summary="Replace what a topic overrides of how it changes its own shape.",
    details="""
    `policy`: any of `enabled`, `max_segments`, `split_cooldown` and so on: the configuration's keys without
    `scalable_topic_`; times in seconds. The rest is as the namespace and the broker say. It counts at once. Raises
    NotFoundError, InvalidArgumentError.
    """,
    errors=(NotFoundError, InvalidArgumentError),
    leader=Leader.NEEDED,
)

GET_AUTO_SCALE_POLICY = Operation(
    name="get_auto_scale_policy",
    http=f"GET {_TOPIC_PATH}/autoScalePolicy",
    parameters=(_TOPIC,),
    result=_OVERRIDDEN,
    summary="What the topic itself overrides; {} for nothing. What is in effect is in its statistics.",
    errors=(NotFoundError,),
)

REMOVE_AUTO_SCALE_POLICY = Operation(
    name="remove_auto_scale_policy",
    http=f"DELETE {_TOPIC_PATH}/autoScalePolicy",
    parameters=(_TOPIC,),
    result=_NOTHING,
    summary="Let the namespace and the broker decide.",
    errors=(NotFoundError,),
    leader=Leader.NEEDED,
    leader_call=("set_auto_scale_policy", {"policy": {}}),
)

GET_AUTO_SCALE_HISTORY = Operation(
    name="get_auto_scale_history",
    http=f"GET {_TOPIC_PATH}/autoScalePolicy/history",
    parameters=(_TOPIC,),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.AutoScaleHistory),
    summary="What auto-scale decided about a topic, and why: the last 64 decisions, the newest first.",
    details="""
    {"leading", "decisions"}: decisions of the present leader since it leads the topic; those that said the same one
    after the other are one. `leading` is false, and there are none, where no leader answers. Raises NotFoundError.
    """,
    errors=(NotFoundError,),
    leader=Leader.PREFERRED,
)

SET_NAMESPACE_AUTO_SCALE_POLICY = Operation(
    name="set_namespace_auto_scale_policy",
    http=f"PUT {_NAMESPACE_PATH}/scalableTopicAutoScalePolicy",
    parameters=(_NAMESPACE, _OVERRIDES),
    result=_NOTHING,
    summary="The same for all topics of a namespace, where they override nothing themselves.",
    errors=(InvalidArgumentError,),
)

GET_NAMESPACE_AUTO_SCALE_POLICY = Operation(
    name="get_namespace_auto_scale_policy",
    http=f"GET {_NAMESPACE_PATH}/scalableTopicAutoScalePolicy",
    parameters=(_NAMESPACE,),
    result=_OVERRIDDEN,
    summary="What the namespace itself overrides; {} for nothing.",
)

REMOVE_NAMESPACE_AUTO_SCALE_POLICY = Operation(
    name="remove_namespace_auto_scale_policy",
    http=f"DELETE {_NAMESPACE_PATH}/scalableTopicAutoScalePolicy",
    parameters=(_NAMESPACE,),
    result=_NOTHING,
    summary="Let the broker decide.",
)

_ROWS = [row for row in tuple(globals().values()) if isinstance(row, Operation)]
OPERATIONS: tuple[Operation[Any], ...] = (
    *_ROWS,
    *RIGHTS_OPERATIONS,
    *LIMIT_OPERATIONS,
    *CLUSTER_OPERATIONS,
    *BACKUP_OPERATIONS,
    *BROKER_OPERATIONS,
)

AT_ANY_TIME = tuple(row.path for row in OPERATIONS if row.at_any_time)
WITHOUT_TOKEN = tuple(row.path for row in OPERATIONS if row.without_token)
