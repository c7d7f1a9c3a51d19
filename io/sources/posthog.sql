-- title: PostHog
-- columns: event distinct_id timestamp properties
-- columns: event distinct_id timestamp uuid
-- columns: event distinct_id timestamp elements_chain
-- columns: event distinct_id timestamp properties.$lib
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
-- then: _properties.sql
--
-- PostHog's events, as its exports write them (a JSON object a line, or a table whose properties are JSON as text), or
-- as its clients send them:
--   event         what was done, named by the site
--   distinct_id   the person, of whom properties.$session_id is a visit, where a browser tracks
--   timestamp     when it was done, ISO 8601, UTC without a zone
--   properties    what the site adds: lists of what was shown, what was clicked
SELECT
    e->>'event' AS name,
    coalesce(e->>'distinct_id', p->>'distinct_id') || coalesce(' ' || (p->>'$."$session_id"'), '') AS visit,
    CAST(TRY_CAST(coalesce(e->>'timestamp', e->>'sent_at', e->>'created_at') AS TIMESTAMPTZ) AS TIMESTAMP) AS timestamp,
    p AS properties
FROM (
    SELECT e, CASE
        WHEN json_type(e->'properties') = 'VARCHAR' THEN TRY_CAST(e->>'properties' AS JSON) ELSE e->'properties'
    END AS p
    FROM (SELECT to_json(log) AS e FROM log)
)
