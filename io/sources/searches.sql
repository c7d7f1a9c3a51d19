-- title: a service's own log of searches
-- columns: clicked_positions
-- columns: clickedPositions
-- columns: clicked_indices
-- columns: clickedIndices
-- columns: clicked_indexes
-- columns: clicked_ranks
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
-- then: _properties.sql
--
-- A row or JSON object a search, with what it showed (results, items, products, doc_ids, ...: ids, or objects with an
-- id) and the places of what was clicked. There is no vendor: each service names its columns itself.
SELECT
    'search' AS name,
    coalesce(
        e->>'search_id', e->>'request_id', e->>'query_id', e->>'session', e->>'session_id', e->>'serp_id',
        'row ' || row_number() OVER ()
    ) AS visit,
    TIMESTAMP '1970-01-01' AS timestamp,
    e AS properties
FROM (SELECT to_json(log) AS e FROM log)
