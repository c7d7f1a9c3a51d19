-- Elasticsearch's behavioral analytics: the events search, search_click and page_view. Fields as in "Behavioral Analytics
-- events reference" of the Elasticsearch guide (8.x), as objects in objects or under dotted names:
--
--   @timestamp, event.action, session.id, user.id, document.id
--   search.query, search.page.current and .size, search.results.items[].document.id
--
-- A page is a search. A click belongs to the last search of its session and query that showed the document.
-- include: _documents.sql
CREATE VIEW lines AS
    WITH fields AS (
        SELECT * EXCLUDE (text, document), json_extract(document, [
            '$."event.action"', '$.event.action', '$."session.id"', '$.session.id', '$."user.id"', '$.user.id',
            '$."search.query"', '$.search.query', '$."document.id"', '$.document.id', '$."@timestamp"'
        ]) AS f, document
        FROM documents
    ), texts AS (
        SELECT
            *, text_of(coalesce(f[1], f[2])) AS action_name, text_of(coalesce(f[3], f[4])) AS session,
            text_of(coalesce(f[5], f[6])) AS user, text_of(coalesce(f[7], f[8])) AS query,
            text_of(coalesce(f[9], f[10])) AS doc, text_of(f[11]) AS timestamp
        FROM fields
    ), searches AS (
        SELECT * EXCLUDE (document, f), CASE WHEN action_name = 'search' THEN json_extract(document, [
            '$."search.results.items"', '$.search."results.items"', '$.search.results.items',
            '$."search.page.current"', '$.search."page.current"', '$.search.page.current',
            '$."search.page.size"', '$.search."page.size"', '$.search.page.size'
        ]) END AS s, document IS NULL AS is_broken
        FROM texts
    ), lists AS (
        SELECT
            * EXCLUDE (s), coalesce(s[1], s[2], s[3]) AS items,
            list_transform([coalesce(s[4], s[5], s[6]), coalesce(s[7], s[8], s[9])], lambda x: CASE
                WHEN json_type(x) = 'UBIGINT' AND TRY_CAST(x AS BIGINT) BETWEEN 1 AND 999999 THEN CAST(x AS BIGINT)
            END) AS page_size
        FROM searches
    ), ids AS (
        SELECT
            *, coalesce((page_size[1] - 1) * page_size[2], 0) AS before,
            list_concat(json_extract(items, '$[*].document.id'), json_extract(items, '$[*]."document.id"')) AS ids
        FROM lists
    )
    SELECT
        n, file, line, session AS key, session, query, user, timestamp, doc, before + 1 AS first,
        CASE WHEN query IS NOT NULL AND session IS NOT NULL THEN struct_pack(session := session, query := query) END AS visit,
        CASE
            WHEN action_name = 'search' AND session IS NOT NULL
                THEN session || ' ' || coalesce(timestamp, '') || ' ' || coalesce(query, '') || ' ' || before
        END AS page,
        ids_of(items, ids) AS docs,
        CASE WHEN NOT is_broken THEN CASE action_name WHEN 'search' THEN 'page' WHEN 'search_click' THEN 'click' END END
            AS kind,
        CASE
            WHEN is_blank THEN 'blank lines'
            WHEN is_broken THEN 'lines that are not in this format'
            WHEN is_action_line THEN 'action lines of the bulk format'
            WHEN action_name IS NULL THEN 'lines of an unknown kind'
            WHEN action_name NOT IN ('search', 'search_click') THEN 'events of other kinds'
        END AS outcome,
        action_name AS action
    FROM ids;
-- include: _pages.sql
