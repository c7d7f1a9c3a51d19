-- Elasticsearch's behavioral analytics: the events search, search_click and page_view. Fields as in "Behavioral Analytics
-- events reference" of the Elasticsearch guide (8.x), as objects in objects or under dotted names:
--
--   @timestamp, event.action, session.id, user.id, document.id, page.url
--   search.query, search.page.current and .size, search.results.items[].document.id and .page.url
--
-- A page is a search. A click belongs to the last search of its session and query that showed the document.
--
-- What clients send has neither time nor action, which the server adds: the path of the request (path, url) tells the
-- action, or else what the event holds; the time is that of arrival, if it was noted (timestamp, at, received_at, time).
-- Items and clicks without a document are known by their page.url.
-- outcome: searches that do not log what they showed (search.results)
-- include: _documents.sql
CREATE VIEW lines AS
    WITH fields AS (
        SELECT * EXCLUDE (text, document), json_extract(document, [
            '$."event.action"', '$.event.action', '$."session.id"', '$.session.id', '$."user.id"', '$.user.id',
            '$."search.query"', '$.search.query', '$."document.id"', '$.document.id', '$."@timestamp"',
            '$."page.url"', '$.page.url', '$."search.results.items"', '$.search."results.items"', '$.search.results.items',
            '$.timestamp', '$.at', '$.received_at', '$.time', '$.path', '$.url'
        ]) AS f, document
        FROM documents
    ), texts AS (
        SELECT
            *, text_of(coalesce(f[1], f[2])) AS action, text_of(coalesce(f[3], f[4])) AS session,
            text_of(coalesce(f[5], f[6])) AS user, text_of(coalesce(f[7], f[8])) AS query,
            text_of(coalesce(f[9], f[10])) AS doc, text_of(coalesce(f[11], f[17], f[18], f[19], f[20])) AS timestamp,
            text_of(coalesce(f[12], f[13])) AS url, coalesce(f[14], f[15], f[16]) AS items,
            regexp_extract(
                concat(f[21]->>'$', ' ', f[22]->>'$'), '/event/(search_click|search|page_?view)', 1
            ) AS of_path
        FROM fields
    ), acting AS (
        SELECT *, coalesce(action, nullif(of_path, ''), CASE
            WHEN items IS NOT NULL THEN 'search'
            WHEN query IS NOT NULL AND (doc IS NOT NULL OR url IS NOT NULL) THEN 'search_click'
            WHEN query IS NOT NULL THEN 'search'
            WHEN url IS NOT NULL THEN 'page_view'
        END) AS action_name
        FROM texts
    ), searches AS (
        SELECT * EXCLUDE (document, f), CASE WHEN action_name = 'search' THEN json_extract(document, [
            '$."search.page.current"', '$.search."page.current"', '$.search.page.current',
            '$."search.page.size"', '$.search."page.size"', '$.search.page.size'
        ]) END AS s, document IS NULL AS is_broken
        FROM acting
    ), lists AS (
        SELECT
            * EXCLUDE (s, items), CASE WHEN action_name = 'search' THEN items END AS items,
            list_transform([coalesce(s[1], s[2], s[3]), coalesce(s[4], s[5], s[6])], lambda x: CASE
                WHEN json_type(x) = 'UBIGINT' AND TRY_CAST(x AS BIGINT) BETWEEN 1 AND 999999 THEN CAST(x AS BIGINT)
            END) AS page_size
        FROM searches
    ), ids AS (
        SELECT
            *, coalesce((page_size[1] - 1) * page_size[2], 0) AS before,
            list_transform(json_extract(items, '$[*]'), lambda i: struct_pack(
                id := text_of(coalesce(i->'$.document.id', i->'$."document.id"')),
                url := text_of(coalesce(i->'$.page.url', i->'$."page.url"'))
            )) AS shown
        FROM lists
    ), urls AS (  -- the only document at an address
        SELECT url, min(id) AS id FROM (SELECT unnest(shown, recursive := true) FROM ids)
        WHERE url IS NOT NULL GROUP BY url HAVING min(id) = max(id) OR min(id) IS NULL
    )
    SELECT
        n, file, line, session AS key, session, query, user, timestamp, before + 1 AS first,
        CASE WHEN u.id IS NULL AND u.url IS NOT NULL THEN url ELSE coalesce(doc, u.id, url) END AS doc,
        CASE WHEN query IS NOT NULL AND session IS NOT NULL THEN struct_pack(session := session, query := query) END AS visit,
        CASE
            WHEN action_name = 'search' AND session IS NOT NULL
                THEN session || ' ' || coalesce(timestamp, CAST(n AS VARCHAR)) || ' ' || coalesce(query, '') || ' ' || before
        END AS page,
        ids_of(items, list_transform(shown, lambda i: to_json(coalesce(i.id, i.url)))) AS docs,
        CASE WHEN NOT is_broken THEN CASE action_name WHEN 'search' THEN 'page' WHEN 'search_click' THEN 'click' END END
            AS kind,
        CASE
            WHEN is_blank THEN 'blank lines'
            WHEN is_broken THEN 'lines that are not in this format'
            WHEN is_action_line THEN 'action lines of the bulk format'
            WHEN action_name IS NULL THEN 'lines of an unknown kind'
            WHEN action_name NOT IN ('search', 'search_click') THEN 'events of other kinds'
            WHEN action_name = 'search' AND items IS NULL THEN 'searches that do not log what they showed (search.results)'
        END AS outcome,
        action_name AS action
    FROM ids LEFT JOIN urls AS u USING (url);
-- include: _pages.sql
