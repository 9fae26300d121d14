"""Finds and removes the canonical expert anchor at the end of a text.

Owns the form in which the gateway tells a backend that understands anchors which expert was chosen.
Does not own where clients may write anchors: that is the gateway's.
"""

import re

# Full-width brackets and colon, an id of lower-case letters, digits and hyphens, then only white space.
_ANCHOR_AT_END = re.compile(r"\s*【专家锚定：([a-z0-9][a-z0-9-]{0,63})】\s*\Z")
_ANCHOR_LENGTH_MAX = 128
"""Characters at the end of a text that are looked at; keeps the search linear for any text."""


def split_anchor(text: str) -> tuple[str, str | None]:
    """Return `text` without its closing anchor, and the expert id that the anchor names, if any.

    Whether that id is registered is for the caller to decide.
    """
    stripped = text.rstrip()
    if not stripped.endswith("】"):
        return text, None
    start = max(0, len(stripped) - _ANCHOR_LENGTH_MAX)
    found = _ANCHOR_AT_END.search(stripped, start)
    if found is None:
        return text, None
    return stripped[: found.start()], found.group(1)


def canonical_anchor(expert_id: str) -> str:
    """Return the canonical anchor directive for `expert_id`."""
    return f"【专家锚定：{expert_id}】"
