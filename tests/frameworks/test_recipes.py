"""The recipe for Django in a project that django-admin makes, and cron jobs that run twice at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import engine
from tests.kit.pages import programs
from tests.tidy.source_tree import ROOT

PAGE = ROOT / "docs" / "recipes.md"
LONG_S = 60.0
_FILE = re.compile(r"^```py\n# (?P<name>\S+)\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)

# What `django-admin startproject shop` and `manage.py startapp bar` run, in one process.
BEGINNING = """
import os
import django
from django.conf import settings
from django.core.management import call_command
settings.configure()
django.setup()
call_command("startproject", "shop")
os.chdir("shop")
call_command("startapp", "bar")
"""

MIGRATING = """
from django.core.management import call_command
call_command("makemigrations", "bar", verbosity=0)
call_command("migrate", verbosity=0)
"""

ORDERING = """
from bar.messages import client, publish_on_commit
from bar.models import Order, Outbox
from django.db import transaction

with transaction.atomic():
    order = Order.objects.create(dish="espresso")
    publish_on_commit("orders", str(order.id).encode(), "7")
    Outbox.objects.create(topic="audit", key="7", value=b"espresso")
try:
    with transaction.atomic():
        order = Order.objects.create(dish="tea")
        publish_on_commit("orders", str(order.id).encode(), "7")
        Outbox.objects.create(topic="audit", key="7", value=b"tea")
        raise LookupError
except LookupError:
    pass
client().close()
"""


def run(project: Path, *command: str, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=project, input=text, capture_output=True, text=True, timeout=LONG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_project(folder: Path, url: str) -> Path:
    """A project of Django's own making, with the recipe's files."""
    project = folder / "shop"
    run(folder, "-c", BEGINNING)
    for match in _FILE.finditer(PAGE.read_text()):
        path = project / match["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(match["code"])
    with (project / "shop" / "settings.py").open("a") as settings:
        settings.write(f'\nENGINE_URL = "{url}"\nINSTALLED_APPS.append("bar")\n')
    run(project, "manage.py", "shell", "-c", MIGRATING)
    return project


def test_django_publishes_on_commit_and_a_command_works(tmp_path: Path):
    with engine.open(":memory:", listen="127.0.0.1:0") as e:
        project = make_project(tmp_path, e.service_url)
        run(project, "manage.py", "shell", "-c", ORDERING)
        for _ in range(2):  # the second time there is nothing
            assert run(project, "manage.py", "publish_outbox") == "published\n"
        with e.checkpoint_consumer("audit", start=engine.Checkpoint.earliest()) as c:
            assert [m.value for m in c.receive_batch(timeout=LONG_S)] == [b"espresso"]
        environment = dict(os.environ, PYTHONUNBUFFERED="1")
        worker = subprocess.Popen(
            [sys.executable, "manage.py", "work"], cwd=project, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        try:
            assert [worker.stdout.readline() for _ in range(2)] == ["working\n", "cooked espresso\n"]
        finally:
            worker.send_signal(signal.SIGTERM)
            rest, _ = worker.communicate(timeout=LONG_S)
        assert (worker.returncode, rest) == (0, "")  # "tea" was rolled back


@pytest.mark.timeout(120)
def test_two_cron_jobs_at_once_count_each_sale_once(tmp_path: Path):
    source = next(code for code in programs(PAGE) if "def drain" in code)
    program = source[: source.index("with engine.open(")] + (
        "with engine.Client() as client:\n"
        "    try:\n"
        "        drain(client)\n"
        "    except (engine.TransactionConflictError, engine.FencedError):\n"
        "        print('the next run goes on')\n"
    )
    program = program.replace("e: engine.Engine", "e: engine.Client")
    with engine.open(":memory:", listen="127.0.0.1:0") as e:
        e.admin.create_topic("sales")
        with e.producer("sales") as p:
            p.send_batch([b"%d" % n for n in range(1000)], keys=[b"%d" % (n % 50) for n in range(1000)])
            p.flush()
        environment = dict(os.environ, ENGINE_URL=e.service_url)
        jobs = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
        assert [job.wait(LONG_S) for job in jobs] == [0, 0]
        run_alone = subprocess.run([sys.executable, "-c", program], env=environment, timeout=LONG_S)
        assert run_alone.returncode == 0
        with e.checkpoint_consumer("reports", start=engine.Checkpoint.earliest()) as c:
            counted = sum(int(m.value) for m in c.receive_batch(timeout=LONG_S))
        assert counted == sum(range(1000))
