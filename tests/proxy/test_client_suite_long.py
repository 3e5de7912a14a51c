"""More tests of the client over a proxy, which take longer: topics that change their shape, shared segments."""

import pytest

from tests.api.test_dead_letters import *  # noqa: F403
from tests.api.test_namespace_acks import *  # noqa: F403
from tests.api.test_reshape_checkpoints import *  # noqa: F403
from tests.api.test_reshape_consumers import *  # noqa: F403
from tests.api.test_reshape_producers import *  # noqa: F403
from tests.api.test_shared_consumers import *  # noqa: F403

pytestmark = pytest.mark.fuzz
