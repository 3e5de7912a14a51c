"""`engine serve --processes N`: the parent of several processes, and the program of each of the others."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engine.aio.tasks import Supervisor
from engine.broker.settings.config import BrokerConfig
from engine.cli.logs import configure
from engine.cli.process import collect_rarely
from engine.cli.reloading import reload_broker, reloaded
from engine.cli.serve import SWITCH_S, at, event_loop_factory, on_hangup, rest_at, serve_until, stop_signal
from engine.processes.life import die_with, leave_signals_to_parent

if TYPE_CHECKING:
    from engine.processes.parent import Parent, Plan


async def serve_processes(
    plan: Plan, config: BrokerConfig, load: Callable[[], BrokerConfig], logs: tuple[str, str]
) -> None:
    """Start, wait for a signal, close. `logs`: level and format. What was acknowledged is durable however this ends."""
    from engine.processes.parent import Parent
    from engine.processes.spawn import launcher

    stopped = stop_signal()
    program = [sys.executable, "-m", "engine.cli.serve_processes", str(os.getpid()), *logs]
    parent, tasks = Parent(plan, config, launcher(program)), Supervisor("reloading")
    on_hangup(lambda: _reload(parent, load(), tasks))
    parent.over.add_done_callback(lambda _: stopped.set())
    try:
        listen_at, admin_at = await parent.start()
        collect_rarely()
        where = f"engine://{at(listen_at)}, {rest_at(admin_at, config)}"
        await serve_until(stopped, f"serving {plan.data} with {plan.count} processes on {where}")
        if parent.over.done():
            parent.over.result()
    finally:
        await tasks.close()
        await parent.close()


def _reload(parent: Parent, config: BrokerConfig, tasks: Supervisor) -> None:
    """Raises InvalidConfigurationError."""
    tasks.spawn(parent.configure(reloaded(parent.config, config)), "configure the processes")


def run_child(parent: int, log_level: str, log_format: str, index: str, channel: int) -> None:
    """Run one process. `parent`: its parent's process id. `channel`: the descriptor of the connection to the parent."""
    die_with(parent)
    leave_signals_to_parent()
    configure(log_level, log_format)
    for handler in logging.getLogger().handlers:
        handler.addFilter(partial(_label, index))
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_serve(socket.socket(fileno=channel)))


def _label(index: str, record: logging.LogRecord) -> bool:
    """Name the process in each line of its log."""
    record.process_index = index
    return True


async def _serve(channel: socket.socket) -> None:
    from engine.processes.child import Child

    child, tasks = Child(reload_broker, collect_rarely, random.SystemRandom()), Supervisor("signals")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: tasks.spawn(child.stop(), "stop"))
    await child.run(channel)
    await tasks.close()


if __name__ == "__main__":
    own_parent, level, form, own_index, descriptor = sys.argv[1:]
    run_child(int(own_parent), level, form, own_index, int(descriptor))
