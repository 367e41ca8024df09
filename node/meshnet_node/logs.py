"""JSON logs: one object a line, an event name plus fields.

Callers say `events(__name__).info("session_opened", session=id, bytes=n)`. Fields are ids, numbers and codes: never the
text or the tokens of a prompt or an answer (a long value is cut, so that a slip can't pour a prompt into the log).
"""

from __future__ import annotations

import logging
import sys
from typing import IO, Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

VALUE_LIMIT = 300
_FIELDS = "meshnet_fields"
_QUIET = ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets", "httpx2", "httpcore2")


class Events:
    """A logger that takes an event name and fields instead of a sentence."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        self._log(logging.ERROR, event, fields, exc_info)

    def _log(self, level: int, event: str, fields: dict[str, object], exc_info: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, exc_info=exc_info, extra={_FIELDS: fields})


def where(error: BaseException) -> str:
    """File and line in which an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


class EventFormatter(JsonFormatter):
    """time, level, logger, event, the process's constants, the call's fields; `error` holds a traceback."""

    def __init__(self, constants: dict[str, object]) -> None:
        reserved = [*RESERVED_ATTRS, _FIELDS]
        super().__init__("%(message)s", rename_fields={"exc_info": "traceback"}, reserved_attrs=reserved)
        self._constants = constants

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        fields: dict[str, object] = record.__dict__.get(_FIELDS, {})
        super().add_fields(log_data, record, message_dict)
        log_data["time"] = self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}"
        log_data["level"] = record.levelname.lower()
        log_data["logger"] = record.name
        log_data["event"] = log_data.pop("message", "")
        log_data.update(self._constants)
        log_data.update({name: _short(value) for name, value in fields.items()})


def configure(level: str, stream: IO[str] | None = None, **constants: object) -> None:
    """Send every record of this process to `stream` (standard error) as JSON; `constants` go into each (role, pod)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(EventFormatter(dict(constants)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def events(name: str) -> Events:
    """The event logger of a module."""
    return Events(logging.getLogger(name))


def _short(value: object) -> object:
    if isinstance(value, int | float | bool) or value is None:
        return value
    text = str(value)
    return text if len(text) <= VALUE_LIMIT else text[:VALUE_LIMIT] + "..."
