"""Storage: segments, which are append-only logs in files, and the records about them in the metadata store.

    store      segments of one data directory, by name: created, opened, deleted
    segment    one log: append, read, wait, seal          reader, waiting: its readers
    cursor/    cursors of subscriptions, visibility of transactions
    commit/    group commit: appends become groups, groups become durable in order
    file/      log files: format, recovery, index, fencing, retention, removal
    dedup/     duplicate detection by producer and sequence id, also across reshapes
    disk/      the file system, workers, settings, measurements

Threads: everything here belongs to the thread of one event loop, except what is called "blocking": that runs as a job
on a worker, and touches nothing that the loop changes meanwhile.
"""
