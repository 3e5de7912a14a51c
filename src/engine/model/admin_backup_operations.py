"""Rows of the admin API's table (`admin_operations`) that `engine backup` uses."""

from __future__ import annotations

from typing import Any

from engine.errors import LimitExceededError, NotFoundError, StorageError, UnsupportedError
from engine.model import admin_answers as answers
from engine.model.admin_parameters import Flag, Kind, Parameter, Where, Whole
from engine.model.admin_requests import Operation, Result
from engine.model.backups import READ_SIZE_MAX

_PATH = "/admin/v2/backups"

_BACKUP = Parameter("ident", Kind(), Where.PATH, "backup")
_NOTHING = Result[None]("None", type(None))

BEGIN_BACKUP = Operation(
    name="begin_backup",
    http=f"POST {_PATH}",
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.BegunBackup),
    summary="Keep the data directory as it is now, for a backup: its files get links in a directory of their own.",
    details="""
    `plan.json` there says what is what. What is kept stays until end_backup, or until nothing was heard of the backup
    for 5 minutes; what is deleted meanwhile takes its space until then. Raises UnsupportedError (several servers share
    the directory, or there is none), LimitExceededError, CorruptionError, StorageError.
    """,
    errors=(UnsupportedError, LimitExceededError, StorageError),  # and damage, which is 500 everywhere
    method=False,
)

READ_BACKUP = Operation(
    name="read_backup",
    http=f"GET {_PATH}/{{backup}}/bytes",
    parameters=(
        _BACKUP,
        Parameter("file", Kind(), Where.QUERY, says="plan.json, metadata.db, or one that the plan names"),
        Parameter("position", Whole(), Where.QUERY, says="where to begin"),
        Parameter("size", Whole(1, READ_SIZE_MAX), Where.QUERY, says="at most so many bytes"),
    ),
    result=Result[str]("str", str, str),
    summary="Bytes of a file that is kept, in base64; fewer where it ends.",
    errors=(NotFoundError, StorageError),
    method=False,
)

RENEW_BACKUP = Operation(
    name="renew_backup",
    http=f"POST {_PATH}/{{backup}}/renew",
    parameters=(_BACKUP,),
    result=_NOTHING,
    summary="Keep it for 5 minutes more.",
    errors=(NotFoundError,),
    method=False,
)

END_BACKUP = Operation(
    name="end_backup",
    http=f"DELETE {_PATH}/{{backup}}",
    parameters=(_BACKUP, Parameter("done", Flag(), Where.QUERY, default=False, says="whether the backup is complete")),
    result=_NOTHING,
    summary="Keep it no longer. Idempotent.",
    method=False,
)

BACKUP_OPERATIONS = tuple(row for row in tuple(globals().values()) if isinstance(row, Operation))
