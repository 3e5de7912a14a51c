"""Tests of the client, as they are, once more over a proxy: `client` comes from the conftest of this folder."""

from test_async import *  # noqa: F403
from test_checkpoints import *  # noqa: F403
from test_messages import *  # noqa: F403
from test_namespaces import *  # noqa: F403
from test_queues import *  # noqa: F403
from test_reshape_consumers import *  # noqa: F403
from test_reshape_producers import *  # noqa: F403
from test_shared_consumers import *  # noqa: F403
