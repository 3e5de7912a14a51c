"""The metadata store of a cluster: records in etcd (docs/cluster.md, docs/formats/metadata-etcd.md).

Nothing here is imported, and neither grpc nor protobuf is needed, before an `etcd://` store is opened.
"""
