-- title: Mixpanel
-- columns: event properties.distinct_id properties.time
-- columns: event distinct_id time properties
-- columns: event properties.distinct_id
-- columns: event properties.token
-- columns: event properties.mp_lib
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
-- then: _properties.sql
--
-- Mixpanel's raw export, or the events that its clients send (a JSON object a line), which may have no time:
--   event         what was done, named by the site
--   properties    time (seconds or milliseconds since 1970), distinct_id (the user or device), and what the site adds:
--                 lists of what was shown, what was clicked
SELECT
    e->>'event' AS name,
    coalesce(e->>'$.properties.distinct_id', e->>'distinct_id', e->>'$.properties."$device_id"', e->>'$.properties."$user_id"') AS visit,
    CASE
        WHEN time IS NULL THEN CAST(TRY_CAST(coalesce(e->>'$.properties.time', e->>'time') AS TIMESTAMPTZ) AS TIMESTAMP)
        ELSE make_timestamp(CAST(time * CASE WHEN time < 1e11 THEN 1e6 WHEN time < 1e14 THEN 1e3 ELSE 1 END AS BIGINT))
    END AS timestamp,
    e->'properties' AS properties
FROM (
    SELECT e, TRY_CAST(coalesce(e->>'$.properties.time', e->>'time') AS DOUBLE) AS time
    FROM (SELECT to_json(log) AS e FROM log)
)
