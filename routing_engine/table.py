"""The fallback table: exactly 128 KiB that map n-gram hashes to expert evidence, usable without torch or gate.

8,192 buckets of 16 learned signed bytes; the small head that turns their sum into scores lies beside it in
``table.json``. Learned vectors beat expert ids and log-odds at this size, and more, shorter vectors beat fewer,
longer ones: what costs accuracy is collisions (docs/adr/0009).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from routing_engine.artefacts import (
    TABLE_FACTS_FILE,
    TABLE_FILE,
    Facts,
    facts_from_json,
    require,
    version_of,
    write_file,
)
from routing_engine.errors import ArtefactError
from routing_engine.features import FEATURE_VERSION, Buckets, Weights
from routing_engine.gate import Floats, softmax

KIND = "fallback-table"
TABLE_BYTES = 131_072
TABLE_BUCKETS = 8_192
TABLE_WIDTH = 16

_LAST_BUCKET = np.uint32(TABLE_BUCKETS - 1)


@dataclass(frozen=True, slots=True)
class FallbackTable:
    """The table's bytes and its head.

    Shapes: cells (TABLE_BUCKETS, TABLE_WIDTH) int8, head (TABLE_WIDTH, E), bias (E); `reading` and
    `reading_bias` are head and bias with scale and temperature in them.
    """

    cells: npt.NDArray[np.int8]
    scale: float
    head: Floats
    bias: Floats
    reading: Floats
    reading_bias: Floats
    facts: Facts
    version: str

    def scores(self, buckets: Buckets, weights: Weights) -> Floats:
        """Return the calibrated probability of each label, shape (E,); buckets may be of a larger table."""
        rows = self.cells[buckets & _LAST_BUCKET].astype(np.float32)
        return softmax((weights @ rows) @ self.reading + self.reading_bias)


def save_table(
    directory: Path,
    cells: npt.NDArray[np.int8],
    scale: float,
    head: Floats,
    bias: Floats,
    facts: Facts,
) -> None:
    """Write ``table.bin`` and ``table.json`` to `directory`."""
    content = np.ascontiguousarray(cells, dtype=np.int8).tobytes()
    assert len(content) == TABLE_BYTES, "the table has its one size"
    document = {
        "facts": json.loads(facts.to_json()),
        "table_version": version_of(content),
        "scale": scale,
        "head": [[round(float(value), 6) for value in row] for row in head],
        "bias": [round(float(value), 6) for value in bias],
    }
    write_file(directory / TABLE_FILE, content)
    write_file(directory / TABLE_FACTS_FILE, json.dumps(document, ensure_ascii=False).encode())


def load_table(directory: Path) -> FallbackTable:
    """Return the table in `directory`.

    Raises:
        ArtefactError: a file is missing or damaged, of another size, or the two don't belong together.
    """
    path, facts_path = directory / TABLE_FILE, directory / TABLE_FACTS_FILE
    try:
        content = path.read_bytes()
        document = json.loads(facts_path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ArtefactError(str(path), f"can't be read: {exc}") from exc
    if len(content) != TABLE_BYTES:
        raise ArtefactError(str(path), f"has {len(content)} bytes, not {TABLE_BYTES}")
    version = version_of(content)
    try:
        facts = facts_from_json(json.dumps(document["facts"]), facts_path)
        named, scale = document["table_version"], float(document["scale"])
        head = np.array(document["head"], dtype=np.float32)
        bias = np.array(document["bias"], dtype=np.float32)
    except (KeyError, TypeError, ValueError) as exc:
        raise ArtefactError(str(facts_path), f"can't be read: {exc!r}") from exc
    require(facts, facts_path, kind=KIND, feature_version=FEATURE_VERSION)
    if named != version:
        raise ArtefactError(str(facts_path), f"belongs to another {TABLE_FILE}; train again")
    experts = len(facts.labels)
    if head.shape != (TABLE_WIDTH, experts) or bias.shape != (experts,):
        raise ArtefactError(str(facts_path), f"its head isn't made for {experts} experts")
    numbers = (scale, facts.temperature, float(np.abs(head).max()), float(np.abs(bias).max()))
    if not all(map(math.isfinite, numbers)) or facts.temperature <= 0:
        raise ArtefactError(str(facts_path), "holds values that aren't numbers")
    return FallbackTable(
        cells=np.frombuffer(content, dtype=np.int8).reshape(TABLE_BUCKETS, TABLE_WIDTH),
        scale=scale,
        head=head,
        bias=bias,
        reading=head * np.float32(scale / facts.temperature),
        reading_bias=bias / np.float32(facts.temperature),
        facts=facts,
        version=version,
    )
