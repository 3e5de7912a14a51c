"""The table of rights: what each command of the wire and each operation of the admin API needs, and on which resource.

A command or operation without an entry is refused. ATTACHED commands need no right of their own: they name what is
attached over the same connection, and was checked when it was attached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.broker.rights.need import Need, on_topic
from engine.model.limits import check_limited
from engine.model.names import ROLE, check_name, parse_namespace
from engine.model.rights import CLUSTER, Right, check_resource
from engine.wire import commands
from engine.wire.commands import Header

PRODUCE, CONSUME, LOOKUP, ADMIN = Right.PRODUCE, Right.CONSUME, Right.LOOKUP, Right.ADMIN
OPERATE, SUPERUSER, BROKER = Right.OPERATE, Right.SUPERUSER, Right.BROKER
ANY_ROLE = Need(0)

Rule = Callable[[Any], Need]  # of a header; raises InvalidArgumentError
ATTACHED: Rule | None = None  # in the table: no check


def any_role(header: Header) -> Need:
    """The rule of what each role may do."""
    return ANY_ROLE


def _lookup(header: commands.ScalableTopicLookup) -> Need:
    return Need(PRODUCE | CONSUME if header.create else LOOKUP, on_topic(header.topic))


def _schema(header: commands.TopicSchema) -> Need:
    declares = PRODUCE if header.producer else CONSUME
    return Need(LOOKUP if header.schema is None else declares, on_topic(header.topic))


def _subscription(
    header: commands.ScalableTopicSubscribe | commands.SeekSubscription | commands.DeleteSubscription,
) -> Need:
    return Need(CONSUME, on_topic(header.topic), header.subscription)


def _leave(header: commands.ScalableTopicUnsubscribe) -> Need:
    """Without a name it is of the consumer that is registered over this connection."""
    if header.topic is None or header.subscription is None:
        return ANY_ROLE
    return Need(CONSUME, on_topic(header.topic), header.subscription)


def _consume(header: commands.Subscribe | commands.SegmentOffset) -> Need:
    return Need(CONSUME, on_topic(header.topic), header.subscription)


def _files(header: commands.SegmentFiles) -> Need:
    """An open file outlives a right. Objects are read by the client's right in their store."""
    return Need(CONSUME, on_topic(header.topic)) if header.objects else Need(SUPERUSER)


def _listed(namespace: str) -> Need:
    """Of its topics those that the principal may look up."""
    return Need(LOOKUP, "/".join(parse_namespace(namespace)), in_part=True)


def _list(header: commands.WatchTopicList | commands.GetTopicsOfNamespace) -> Need:
    return _listed(header.namespace)


COMMANDS: dict[type[Header], Rule | None] = {
    commands.Ping: ATTACHED,
    commands.Pong: ATTACHED,
    commands.Authenticate: ATTACHED,  # it proves the same role, or nothing
    commands.ScalableTopicLookup: _lookup,
    commands.ScalableTopicClose: ATTACHED,
    commands.ScalableTopicSubscribe: _subscription,
    commands.ScalableTopicUnsubscribe: _leave,
    commands.SeekSubscription: _subscription,
    commands.DeleteSubscription: _subscription,
    commands.TopicSchema: _schema,
    commands.WatchTopicList: _list,
    commands.WatchTopicListClose: ATTACHED,
    commands.GetTopicsOfNamespace: _list,
    commands.Producer: lambda header: Need(PRODUCE, on_topic(header.topic)),
    commands.Send: ATTACHED,
    commands.CloseProducer: ATTACHED,
    commands.Subscribe: _consume,
    commands.Flow: ATTACHED,
    commands.Ack: ATTACHED,
    commands.Redeliver: ATTACHED,
    commands.CloseConsumer: ATTACHED,
    commands.SegmentOffset: _consume,
    commands.SegmentFiles: _files,
    commands.BrokerCall: lambda header: Need(BROKER),
    commands.NewTxn: any_role,
    commands.EndTxn: any_role,
    commands.TxnState: any_role,
}


# -- the admin API: by the name of the operation, of its arguments that travel in the path -----------------------------

Arguments = Mapping[str, Any]
AdminRule = Callable[[Arguments], Need]


def _topic(rights: int) -> AdminRule:
    return lambda arguments: Need(rights, on_topic(arguments["topic"]))


def _segment(rights: int) -> AdminRule:
    return lambda arguments: Need(rights, on_topic(arguments["segment"]))


def _namespace(rights: int) -> AdminRule:
    return lambda arguments: Need(rights, "/".join(parse_namespace(arguments["namespace"])))


def _cluster(rights: int) -> AdminRule:
    return lambda arguments: Need(rights)


def _of_subscription(arguments: Arguments) -> Need:
    return Need(CONSUME, on_topic(arguments["topic"]), arguments["subscription"])


def _tenant(arguments: Arguments) -> Need:
    return Need(ADMIN, check_name(arguments["tenant"], "tenant"))


def _tenant_of_namespace(arguments: Arguments) -> Need:
    return Need(ADMIN, parse_namespace(arguments["namespace"])[0])


def _grants(arguments: Arguments) -> Need:
    return Need(ADMIN, check_resource(arguments["resource"]))


def _grant(arguments: Arguments) -> Need:
    """What administers a resource grants on it; on the cluster, superusers do."""
    resource = check_resource(arguments["resource"])
    return Need(SUPERUSER if resource == CLUSTER else ADMIN, resource)


def _limits_of(arguments: Arguments) -> Need:
    """To see them: what may look the resource up; those of roles and of the cluster, what operates it."""
    resource = check_limited(arguments["resource"])
    if resource == CLUSTER or resource.startswith(ROLE):
        return Need(OPERATE)
    return Need(LOOKUP, resource)


def _limits(arguments: Arguments) -> Need:
    """What a resource may use is said by what administers the one above it, and not by itself."""
    resource = check_limited(arguments["resource"])
    if resource.startswith(ROLE) or "/" not in resource:
        return Need(OPERATE)
    return Need(ADMIN | OPERATE, resource.rpartition("/")[0])


OPERATIONS: dict[str, AdminRule] = {
    "create_topic": _topic(ADMIN),
    "delete_topic": _topic(ADMIN),
    "list_topics": lambda arguments: _listed(arguments["namespace"]),
    "get_metadata": _topic(LOOKUP),
    "get_stats": _topic(LOOKUP),
    "set_topic_properties": _topic(ADMIN),
    "get_topic_policies": _topic(LOOKUP),
    "set_topic_policies": _topic(ADMIN),
    "remove_topic_policies": _topic(ADMIN),
    "split_segment": _topic(ADMIN),
    "merge_segments": _topic(ADMIN),
    "rebucket_segment": _topic(ADMIN),
    "create_segment": _cluster(SUPERUSER),  # repairs by hand; between brokers they are BROKER_CALLs
    "terminate_segment": _cluster(SUPERUSER),
    "delete_segment": _cluster(SUPERUSER),
    "get_segment_stats": _segment(LOOKUP),
    "create_subscription": _of_subscription,
    "delete_subscription": _of_subscription,
    "seek_subscription": _of_subscription,
    "clear_backlog": _of_subscription,
    "skip_messages": _of_subscription,
    "list_transactions": _cluster(OPERATE),
    "get_transaction": _cluster(OPERATE),
    "abort_transaction": _cluster(OPERATE),
    "list_namespaces": _cluster(0),  # the answer has those that the role may look up
    "get_namespace_policies": _namespace(LOOKUP),
    "set_namespace_policies": _namespace(ADMIN),
    "replace_namespace_policies": _namespace(ADMIN),
    "remove_namespace_policies": _namespace(ADMIN),
    "set_auto_scale_policy": _topic(ADMIN),
    "get_auto_scale_policy": _topic(LOOKUP),
    "remove_auto_scale_policy": _topic(ADMIN),
    "get_auto_scale_history": _topic(LOOKUP),
    "set_namespace_auto_scale_policy": _namespace(ADMIN),
    "get_namespace_auto_scale_policy": _namespace(LOOKUP),
    "remove_namespace_auto_scale_policy": _namespace(ADMIN),
    "list_brokers": _cluster(OPERATE),
    "get_metrics": _cluster(OPERATE),  # it names the topics of all
    "list_dynamic_configuration": _cluster(OPERATE),
    "get_dynamic_configuration": _cluster(OPERATE),
    "get_runtime_configuration": _cluster(OPERATE),
    "set_dynamic_configuration": _cluster(OPERATE),
    "remove_dynamic_configuration": _cluster(OPERATE),
    "get_description": _cluster(0),
    "list_tenants": _cluster(0),  # likewise
    "create_tenant": _cluster(SUPERUSER),
    "get_tenant": _tenant,
    "set_tenant_roles": _cluster(SUPERUSER),
    "delete_tenant": _cluster(SUPERUSER),
    "create_namespace": _tenant_of_namespace,
    "delete_namespace": _tenant_of_namespace,
    "list_grants": _grants,
    "grant": _grant,
    "revoke": _grant,
    "get_permissions": _cluster(0),  # of the role itself
    "list_limits": _cluster(OPERATE),
    "get_limits": _limits_of,
    "set_limits": _limits,
    "replace_limits": _limits,
    "remove_limits": _limits,
    "drain_broker": _cluster(OPERATE),
    "undrain_broker": _cluster(OPERATE),
    "balance_brokers": _cluster(OPERATE),
    "sweep_objects": _cluster(OPERATE),
    "unload_topic": _cluster(OPERATE),
    "unload_segment": _cluster(OPERATE),
    "begin_backup": _cluster(SUPERUSER),  # it reads the messages of all
    "read_backup": _cluster(SUPERUSER),
    "renew_backup": _cluster(SUPERUSER),
    "end_backup": _cluster(SUPERUSER),
}


# -- the command line: what each verb asks of a broker, as operations and commands of the tables above -----------------

Asked = type[Header] | str
_FIND, _READ = commands.ScalableTopicLookup, commands.Subscribe
_LETTERS: tuple[Asked, ...] = _FIND, _READ, "get_stats"

VERBS: dict[str, tuple[Asked, ...]] = {
    "topics create": ("create_topic",),
    "topics delete": ("delete_topic",),
    "topics describe": ("get_metadata", "get_stats"),
    "topics list": (commands.GetTopicsOfNamespace,),
    "topics stats": ("get_stats",),
    "topics split": ("split_segment",),
    "topics merge": ("merge_segments",),
    "topics rebucket": ("rebucket_segment",),
    "topics autoscale get": ("get_auto_scale_policy", "get_namespace_auto_scale_policy", "get_stats"),
    "topics autoscale history": ("get_auto_scale_history",),
    "topics autoscale set": ("set_auto_scale_policy", "get_stats"),
    "topics autoscale unset": ("remove_auto_scale_policy",),
    "topics policies get": ("get_topic_policies", "get_namespace_policies", "get_limits"),
    "topics policies set": ("set_topic_policies",),
    "topics policies unset": ("remove_topic_policies",),
    "topics properties get": ("get_metadata",),
    "topics properties set": ("get_metadata", "set_topic_properties"),
    "topics properties unset": ("get_metadata", "set_topic_properties"),
    "subscriptions list": ("get_stats",),
    "subscriptions stats": ("get_stats",),
    "subscriptions create": ("create_subscription",),
    "subscriptions delete": ("delete_subscription",),
    "subscriptions seek": ("seek_subscription",),
    "subscriptions clear-backlog": ("clear_backlog",),
    "subscriptions skip": ("skip_messages",),
    "tenants create": ("create_tenant",),
    "tenants delete": ("delete_tenant",),
    "tenants get": ("get_tenant",),
    "tenants list": ("list_tenants",),
    "tenants roles": ("set_tenant_roles",),
    "namespaces create": ("create_namespace",),
    "namespaces delete": ("delete_namespace",),
    "namespaces get": ("get_namespace_policies", "get_limits"),
    "namespaces list": ("list_namespaces",),
    "namespaces set": ("set_namespace_policies",),
    "namespaces unset": ("remove_namespace_policies",),
    "namespaces remove": ("remove_namespace_policies",),
    "namespaces autoscale get": ("get_namespace_auto_scale_policy",),
    "namespaces autoscale set": ("set_namespace_auto_scale_policy",),
    "namespaces autoscale unset": ("remove_namespace_auto_scale_policy",),
    "grants add": ("grant",),
    "grants check": ("get_permissions",),
    "grants list": ("list_grants",),
    "grants remove": ("revoke",),
    "transactions list": ("list_transactions",),
    "transactions show": ("get_transaction",),
    "transactions abort": ("abort_transaction",),
    "brokers list": ("list_brokers",),
    "brokers drain": ("drain_broker",),
    "brokers undrain": ("undrain_broker",),
    "brokers balance": ("balance_brokers",),
    "brokers unload": ("unload_topic",),
    "brokers config get": ("get_runtime_configuration",),
    "brokers config list": ("get_dynamic_configuration", "get_runtime_configuration"),
    "brokers config set": ("set_dynamic_configuration",),
    "brokers config unset": ("remove_dynamic_configuration",),
    "produce": (_FIND, commands.Producer),
    "consume": (_FIND, _READ),
    "export": (_FIND, _READ, commands.SegmentOffset, commands.TopicSchema),
    "import": (_FIND, commands.Producer, commands.TopicSchema),
    "dead-letters list": _LETTERS,
    "dead-letters show": _LETTERS,
    "dead-letters redrive": _LETTERS,  # and what a producer needs, where there is a letter
    "perf produce": ("create_topic", _FIND, commands.Producer),
    "perf consume": (_FIND, _READ),
    "perf compare": (
        "create_topic",
        "delete_topic",
        _FIND,
        commands.Producer,
        commands.ScalableTopicSubscribe,
        commands.ScalableTopicUnsubscribe,
        _READ,
    ),
    "limits list": ("list_limits",),
    "limits get": ("get_limits",),
    "limits set": ("set_limits",),
    "limits unset": ("remove_limits",),
    "objects sweep": ("sweep_objects",),
    "backup create": ("begin_backup", "end_backup"),  # and read_backup from another machine, renew_backup if it is long
    "migrate": (
        # of its source
        *(_FIND, _READ, commands.SegmentOffset, commands.TopicSchema),
        *("get_auto_scale_policy", "get_metadata", "get_stats", "get_topic_policies"),
        # of its destination
        *(commands.Producer, "create_topic", "set_topic_policies", "set_topic_properties"),
    ),
    "top": ("get_metrics",),  # and the statistics of a topic that is chosen
    "doctor": ("get_metrics", "list_brokers"),  # its report says what it may not see
}

# Those that ask no broker by a role: servers, what sets them up, and files of this machine.
LOCAL_VERBS = (
    *("serve", "proxy", "console", "tokens create", "tokens list", "tokens revoke", "inspect", "demo"),
    *("cluster check", "cluster init", "cluster status"),
    *("backup list", "backup prune", "backup verify", "restore", "config check", "config schema"),
)


# -- Apache Pulsar's protocol: what its commands ask, as commands of the table above -----------------------------------

# Those that ask nothing name what is attached over the same connection, or are answered alike for every role.
_LOOKUP, _CLOSE_LOOKUP = commands.ScalableTopicLookup, commands.ScalableTopicClose
_CLASSIC = _LOOKUP, _CLOSE_LOOKUP  # where it is: a layout that is not followed

PULSAR: dict[str, tuple[type[Header], ...]] = {
    "connect": (),  # the handshake
    "ping": (commands.Ping,),
    "pong": (commands.Pong,),
    "auth_response": (commands.Authenticate,),
    "lookup": _CLASSIC,
    "partitioned": _CLASSIC,
    "get_topics": (commands.GetTopicsOfNamespace,),
    "get_schema": (commands.TopicSchema,),
    "get_or_create_schema": (commands.TopicSchema,),
    "producer": (commands.Producer, *_CLASSIC, commands.TopicSchema, commands.Subscribe),
    "send": (commands.Send,),
    "close_producer": (commands.CloseProducer,),
    "subscribe": (commands.Subscribe, *_CLASSIC, commands.TopicSchema, commands.SegmentOffset),
    "flow": (commands.Flow,),
    "ack": (commands.Ack,),
    "redeliver": (commands.Redeliver,),
    "seek": (),
    "get_last_message_id": (),
    "consumer_stats": (),
    "unsubscribe": (commands.CloseConsumer, commands.DeleteSubscription),
    "close_consumer": (commands.CloseConsumer, commands.ScalableTopicUnsubscribe),
    "scalable_lookup": (_LOOKUP,),
    "scalable_close": (_CLOSE_LOOKUP,),
    "scalable_subscribe": (commands.ScalableTopicSubscribe,),
    "watch_topics": (commands.WatchTopicList,),
    "watch_topics_close": (commands.WatchTopicListClose,),
    "watch_topic_list": (commands.WatchTopicList,),
    "watch_topic_list_close": (commands.WatchTopicListClose,),
    "tc_connect": (),  # every broker coordinates transactions
    "watch_tcs": (),
    "watch_tcs_close": (),
    "new_txn": (commands.NewTxn, commands.EndTxn),
    "add_partition": (),  # it is written down with the message
    "add_subscription": (),
    "end_txn": (commands.EndTxn,),
}
