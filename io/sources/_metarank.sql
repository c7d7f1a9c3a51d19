-- Metarank's events: rankings, which say what was shown, and interactions, which say what was done with it. Fields as in
-- "Supported events" and "Timestamp formats" of its documentation (doc/event-schema.md of metarank/metarank):
--
--   event, id, timestamp, user, session, fields[name = query].value, items[].id   of a ranking
--   ranking, type, item                                                            of an interaction
--
-- A page is a ranking; interactions name it. Their type says which of them are clicks (`getvariable('actions')`).
-- include: _documents.sql
CREATE VIEW lines AS
    WITH fields AS (
        SELECT * EXCLUDE (document), document IS NULL AS is_broken, json_extract(document, [
            '$.event', '$.id', '$.timestamp', '$.user', '$.session', '$.fields', '$.items', '$.ranking', '$.type', '$.item'
        ]) AS f
        FROM documents
    ), kinds AS (
        SELECT *, f[1]->>'$' AS event, text_of(f[9]) AS type,
            coalesce(list_contains(getvariable('actions'), type), false) AS is_click
        FROM fields
    )
    SELECT
        n, file, line,
        CASE WHEN event = 'ranking' THEN 'page' WHEN event = 'interaction' AND is_click THEN 'click' END AS kind,
        CASE
            WHEN is_blank THEN 'blank lines'
            WHEN is_broken THEN 'lines that are not in this format'
            WHEN event IN ('item', 'user') THEN 'events of other kinds'
            WHEN event = 'interaction' AND NOT is_click THEN 'events of other kinds'
            WHEN event NOT IN ('ranking', 'interaction') OR event IS NULL THEN 'lines of an unknown kind'
        END AS outcome,
        CASE event WHEN 'interaction' THEN type ELSE event END AS action,
        text_of(CASE event WHEN 'ranking' THEN f[2] ELSE f[8] END) AS page, page AS key, page AS visit,
        text_of(f[5]) AS session, text_of(f[4]) AS user, text_of(f[3]) AS timestamp, text_of(f[10]) AS doc,
        CASE
            WHEN getvariable('no_query') THEN ''
            ELSE text_of(list_filter(json_extract(f[6], '$[*]'), lambda x: (x->>'$.name') = 'query')[1]->'$.value')
        END AS query,
        ids_of(f[7], json_extract(f[7], '$[*].id')) AS docs, 1 AS first
    FROM kinds;
-- include: _pages.sql
