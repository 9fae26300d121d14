"""Structured logs: one JSON object a line, constant event names, ids and numbers as fields.

Never prompts, customers' terms or credentials; a filter masks whatever looks like one of our keys as a second net.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime

import msgspec

_KEY = re.compile(r"eg_[0-9A-Za-z]{20,}")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; fields come from ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        fields: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields.update(
            (name, value) for name, value in record.__dict__.items() if name not in _STANDARD
        )
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        try:
            line = msgspec.json.encode(fields, enc_hook=str).decode()
        except UnicodeEncodeError:
            # A lone surrogate, e.g. of a file name that isn't UTF-8: escaped rather than lost.
            line = json.dumps(fields, default=str)
        return _KEY.sub("eg_…", line)


def configure_logging(level: str = "INFO") -> None:
    """Send every record of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # One line per request is ours; the libraries' own chatter starts at warnings.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
