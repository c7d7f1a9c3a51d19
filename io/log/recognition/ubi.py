"""Whether files hold documents of OpenSearch UBI."""

from collections.abc import Sequence

from posbias.io.log.findings import Finding
from posbias.io.log.scan import reading, schema_of
from posbias.io.log.sources import Source

_OF_EVENTS, _OF_QUERIES = {"action_name", "query_id"}, {"user_query", "query_id"}
_HITS = {"query_response_hit_ids", "query_response_object_ids", "query_response_id", "action_name"}


def find_ubi(sources: Sequence[Source]) -> list[Finding]:
    """Whether the fields are those of UBI's queries and events."""
    if any(source.format != "ndjson" for source in sources):
        return []
    with reading(sources):
        names = {name for source in sources for name in schema_of(source)}
    if not (names & _HITS and (names >= _OF_EVENTS or names >= _OF_QUERIES)):
        return []
    return [Finding("the lines are OpenSearch UBI queries and events", ("--input-format", "ubi"))]
