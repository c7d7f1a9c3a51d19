-- title: Amplitude
-- columns: event_type event_properties event_time
-- columns: event_type event_properties amplitude_id
-- columns: event_type event_properties insert_id time
-- columns: event_type event_properties user_id time
-- columns: event_type event_properties device_id time
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
-- then: _properties.sql
--
-- Amplitude's export, or the events that its clients send (a JSON object a line):
--   event_type        what was done, named by the site
--   event_properties  what the site adds: lists of what was shown, what was clicked
--   event_time        when it was done, UTC: 2026-01-05 10:00:00.123000; of clients: time, milliseconds since 1970
--   amplitude_id, device_id, user_id  whom Amplitude takes for one user, the device, the user's own id
--   session_id        milliseconds since 1970 at which the visit began; -1 outside of one
SELECT
    e->>'event_type' AS name,
    coalesce(e->>'amplitude_id', e->>'device_id', e->>'user_id') || coalesce(' ' || (e->>'session_id'), '') AS visit,
    coalesce(
        CAST(TRY_CAST(coalesce(e->>'event_time', e->>'client_event_time', e->>'time') AS TIMESTAMPTZ) AS TIMESTAMP),
        make_timestamp(CAST(clock * CASE WHEN clock < 1e11 THEN 1e6 WHEN clock < 1e14 THEN 1e3 ELSE 1 END AS BIGINT))
    ) AS timestamp,
    e->'event_properties' AS properties
FROM (
    SELECT e, TRY_CAST(coalesce(e->>'time', e->>'event_time') AS DOUBLE) AS clock FROM (SELECT to_json(log) AS e FROM log)
)
