"""Tests of the client, as they are, once more over a proxy: their fixtures come from this folder's conftest."""

from tests.api.test_async import *  # noqa: F403
from tests.api.test_checkpoints import *  # noqa: F403
from tests.api.test_deleted_subscriptions import *  # noqa: F403
from tests.api.test_messages import *  # noqa: F403
from tests.api.test_namespaces import *  # noqa: F403
from tests.api.test_queues import *  # noqa: F403
from tests.api.test_transacting import *  # noqa: F403
from tests.api.test_transaction_acks import *  # noqa: F403
