"""``POST /v1/route``: the decision that the data path would take, explained, without calling a backend."""

import msgspec
from starlette.types import Receive, Scope, Send

from gateway import headers
from gateway.admission import Admitter
from gateway.anchors import without_directive
from gateway.chat import newest_human_text
from gateway.context import context_of


class Route:
    """Explains a decision; takes a chat body or ``{"text": …}``. Free of charge, and without side effects."""

    def __init__(self, admitter: Admitter) -> None:
        self._admitter = admitter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the decision."""
        context = context_of(scope, receive)
        decision = await self._admitter.route(context)
        assert context.chat is not None, "the body is read before routing"
        expert = self._admitter.experts.by_id[decision.expert_id]
        body = msgspec.json.encode(
            {
                "object": "route",
                "expert": {
                    "id": expert.expert_id,
                    "number": expert.number,
                    "domain": expert.domain,
                    "name": expert.name,
                },
                "source": decision.source.value,
                "score": decision.score,
                "stage": decision.stage,
                "table_share": decision.table_share,
                "reason": decision.reason,
                "candidates": [
                    {"expert_id": candidate.expert_id, "score": candidate.score}
                    for candidate in decision.candidates
                ],
                "artefact_version": decision.artefact_version,
                "dictionary_version": context.dictionary_version,
                "terms": [
                    {
                        "start": match.span.start,
                        "end": match.span.end,
                        "surface": match.surface,
                        "concept_id": match.concept_id,
                        "lang": match.lang,
                        "preferred": match.preferred,
                        "action": match.action.value,
                    }
                    for match in context.matches
                ],
                "text": newest_human_text(without_directive(context.chat.messages)),
                "ignored_anchor": context.anchor.ignored,
            }
        )
        response_headers = [
            (headers.CONTENT_TYPE, headers.JSON),
            (headers.CONTENT_LENGTH, str(len(body)).encode()),
            (headers.EXPERT_ID, expert.expert_id.encode("ascii", "replace")),
            (headers.ROUTE_SOURCE, decision.source.value.encode()),
            *context.response_headers,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": response_headers})
        await send({"type": "http.response.body", "body": body})
