"""Errors of the term dictionary.

TermDbError
├── InvalidTerm          one entry of an import or edit is unusable; names source and line
├── TermConflict         the same folded variant is claimed by two concepts
├── UnknownConcept       the concept id is not in the dictionary
├── UnknownVersion       the requested snapshot version was never published
├── CorruptSnapshot      a snapshot file fails its checksum, count or format check
└── StoreUnavailable     the dictionary's database can't be opened, read or written
"""


class TermDbError(Exception):
    """Base of everything `term_db` raises on purpose."""


class InvalidTerm(TermDbError):
    """An entry can't be used; `source` and `line` say where it stands (line 0: not from a file)."""

    def __init__(self, reason: str, *, source: str = "", line: int = 0) -> None:
        self.reason, self.source, self.line = reason, source, line
        place = f"{source}:{line}: " if line else f"{source}: " if source else ""
        super().__init__(f"{place}{reason}")


class TermConflict(TermDbError):
    """Two concepts claim the same folded variant and neither declares a homonym.

    `place` says where the variant stands (file and line) when it came from a file; `more_count` is the
    number of further conflicts.
    """

    def __init__(
        self, variant: str, concept_ids: tuple[str, ...], *, place: str = "", more_count: int = 0
    ) -> None:
        self.variant, self.concept_ids, self.place = variant, concept_ids, place
        self.more_count = more_count
        prefix = f"{place}: " if place else ""
        more = f" (and {more_count} more conflicts)" if more_count else ""
        super().__init__(
            f"{prefix}variant {variant!r} is claimed by {', '.join(concept_ids)}{more};"
            " remove it from all but one of them"
        )


class UnknownConcept(TermDbError):
    """No concept has this id."""

    def __init__(self, concept_id: str) -> None:
        self.concept_id = concept_id
        super().__init__(f"no concept has the id {concept_id!r}")


class UnknownVersion(TermDbError):
    """No snapshot with this version was published."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"dictionary version {version} was never published")


class CorruptSnapshot(TermDbError):
    """The snapshot file is damaged or of an unknown format; the one in use stays in use."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


class StoreUnavailable(TermDbError):
    """The dictionary's database can't be opened, read or written."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")
