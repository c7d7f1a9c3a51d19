-- used: queries
-- used: impressions
-- outcome: blank lines
-- outcome: action lines of the bulk format
-- fatal: lines that are not a JSON object
-- fatal: documents that are neither a query nor an event
-- fatal: queries without a query_id
-- outcome: queries without a user_query
-- outcome: queries whose hit list is not a list of different ids
-- outcome: queries without hits
-- outcome: queries that were written before
-- outcome: queries whose query_id has another user_query or hit list as well
-- outcome: queries whose query_id has another hit list as well, and no `from` in `query` says where each begins
-- outcome: queries of which nothing was shown
-- outcome: events of other actions
-- outcome: impression events, as hit lists say what was shown
-- outcome: impressions without a query_id
-- outcome: impressions without an object_id
-- outcome: impressions whose query was not recorded
-- outcome: impressions whose query is not used
-- outcome: impressions and queries of pages with two documents at one position, or one at two
-- outcome: impressions of a document that is not in the hit list
-- outcome: impressions without a hit list: to read ordinals, say --position-base impression=N
-- outcome: impressions without a hit list and without a whole ordinal
-- fatal: impressions whose ordinal is below the position base
-- outcome: impressions that were seen before
--
-- OpenSearch UBI: documents of ubi_queries and ubi_events. A page is a query_id, and its query the user_query of its
-- document. A query_id may have several documents: those without hits do not count beside one with hits. Of the others,
-- hit lists that go on where another ends are the next pages of one search: each begins below the hits that its request
-- left out, the `from` of `query` (which is 0 where a request has none). If they differ otherwise, the page is left out.
-- What was shown are the hit lists, or with `getvariable('by_events')` the impressions that
-- were recorded, at the places of their documents in the list, or where there is none by their ordinals, which count from
-- `getvariable('bases')` for each action, and are not read without it. `getvariable('actions')` says what a click is.
-- `getvariable('attributes')` are paths in events, whose values a document of a page has if its events agree on them.
-- include: _documents.sql
CREATE TABLE parsed AS
    WITH fields AS (
        SELECT * EXCLUDE (document), document IS NULL AS is_broken, json_extract(document, [
            '$.action_name', '$.query_id', '$.user_query', '$.query_response_id', '$.query_response_hit_ids',
            '$.query_response_object_ids', '$.query_response_objects_ids',  -- of UBI 1.0, and of OpenSearch 2.15
            '$.event_attributes.object.object_id', '$.event_attributes.position.ordinal',
            '$.timestamp', '$.client_id', '$.application', '$.query', '$.from', '$.query_attributes.from'
        ]) AS f, list_transform(getvariable('attributes'), lambda path: document->>path) AS kept
        FROM documents
    ), named AS (
        SELECT
            n, file, line, is_blank, is_broken, is_action_line, kept, text_of(f[1]) AS action, text_of(f[2]) AS query_id,
            text_of(f[3]) AS user_query, text_of(f[8]) AS object_id, TRY_CAST(f[9]->>'$' AS DOUBLE) AS ordinal,
            f[10]->>'$' AS timestamp, f[11]->>'$' AS client_id, f[12]->>'$' AS application,
            coalesce(
                TRY_CAST(f[14]->>'$' AS BIGINT), TRY_CAST(f[15]->>'$' AS BIGINT),
                CASE WHEN json_type(TRY_CAST(f[13]->>'$' AS JSON)) = 'OBJECT'
                    THEN coalesce(TRY_CAST(CAST(f[13]->>'$' AS JSON)->>'$.from' AS BIGINT), 0) END
            ) AS start,
            list_filter(f[5:7], lambda x: json_type(x) <> 'NULL')[1] AS hits,
            list_has_any(list_transform(f[3:7], lambda x: json_type(x) <> 'NULL'), [true]) AS is_query
        FROM fields
    ), kinds AS (
        SELECT * EXCLUDE (hits), CASE
            WHEN action = 'impression' THEN 'impression'
            WHEN list_contains(getvariable('actions'), action) THEN 'click'
            WHEN action IS NULL AND is_query THEN 'query'
        END AS kind, hits IS NOT NULL AS has_list, coalesce(ids_of(hits, json_extract(hits, '$[*]')), []) AS ids,
        coalesce(len(list_distinct(ids)) < json_array_length(hits) OR json_type(hits) <> 'ARRAY', false) AS is_bad
        FROM named
    )
    SELECT * EXCLUDE (is_blank, is_broken, is_action_line, is_query, has_list, is_bad), CASE
        WHEN is_blank THEN 'blank lines'
        WHEN is_broken THEN 'lines that are not a JSON object'
        WHEN is_action_line THEN 'action lines of the bulk format'
        WHEN kind IS NULL AND action IS NULL THEN 'documents that are neither a query nor an event'
        WHEN kind IS NULL THEN 'events of other actions'
        WHEN kind = 'query' AND query_id IS NULL THEN 'queries without a query_id'
        WHEN kind = 'query' AND user_query IS NULL THEN 'queries without a user_query'
        WHEN kind = 'query' AND is_bad THEN 'queries whose hit list is not a list of different ids'
        WHEN kind = 'impression' AND NOT getvariable('by_events')
            THEN 'impression events, as hit lists say what was shown'
        WHEN kind = 'impression' AND query_id IS NULL THEN 'impressions without a query_id'
        WHEN kind = 'impression' AND object_id IS NULL THEN 'impressions without an object_id'
        WHEN kind = 'click' AND query_id IS NULL THEN 'clicks without the id of a page or visit'
        WHEN kind = 'click' AND object_id IS NULL THEN 'clicks without a document'
    END AS outcome
    FROM kinds;
CREATE VIEW known AS SELECT query_id AS page FROM parsed WHERE kind = 'query';
CREATE TABLE queries AS
    WITH good AS (
        SELECT
            * EXCLUDE (start), len(ids) > 0 AS listed, CASE WHEN len(ids) > 0 THEN start END AS start,
            list_transform(ids, lambda x, i: i + coalesce(start, 0)) AS places
        FROM parsed WHERE kind = 'query' AND outcome IS NULL
    ), marked AS (  -- the documents of each query_id that count
        SELECT *, hash(struct_pack(user_query := user_query, ids := ids, start := start)) AS content
        FROM good JOIN (SELECT query_id, bool_or(listed) AS any_listed FROM good GROUP BY query_id) USING (query_id)
    ), lists AS (
        SELECT
            query_id, content, min(n) AS earliest, any_value(user_query) AS user_query, any_value(ids) AS ids,
            any_value(places) AS places, any_value(start) AS start
        FROM marked WHERE listed = any_listed GROUP BY query_id, content
    ), judged AS (
        SELECT
            query_id,
            min(user_query) < max(user_query) OR len(list_distinct(flatten(list(ids)))) < sum(len(ids))
                OR (count(start) = count(*) AND len(list_distinct(flatten(list(places)))) < sum(len(places))) AS differ,
            count(*) > 1 AND count(start) < count(*) AS begin_anywhere
        FROM lists GROUP BY query_id
    )
    SELECT s.*, CASE
        WHEN listed < any_listed OR NOT (listed OR getvariable('by_events')) THEN 'queries without hits'
        WHEN differ THEN 'queries whose query_id has another user_query or hit list as well'
        WHEN begin_anywhere THEN
            'queries whose query_id has another hit list as well, and no `from` in `query` says where each begins'
        WHEN s.n > earliest THEN 'queries that were written before'
    END AS result
    FROM marked AS s LEFT JOIN judged USING (query_id)
    LEFT JOIN (SELECT query_id, content, earliest FROM lists) USING (query_id, content);
CREATE TABLE answers AS
    SELECT
        query_id, min(n) AS n, any_value(user_query) AS user_query, bool_and(listed) AS listed,
        flatten(list(ids ORDER BY start, n)) AS ids, flatten(list(places ORDER BY start, n)) AS places,
        arg_min(timestamp, n) AS timestamp, arg_min(client_id, n) AS client_id, arg_min(application, n) AS application
    FROM queries WHERE result IS NULL GROUP BY query_id;
CREATE TABLE impressions AS
    SELECT
        i.n, i.file, i.line, i.query_id, i.object_id, listed,
        CASE WHEN listed THEN q.places[list_position(q.ids, i.object_id)] ELSE TRY_CAST(i.ordinal - base + 1 AS BIGINT) END AS position,
        CASE
            WHEN q.n IS NULL AND i.query_id IN (FROM known) THEN 'impressions whose query is not used'
            WHEN q.n IS NULL THEN 'impressions whose query was not recorded'
            WHEN listed AND NOT list_contains(q.ids, i.object_id)
                THEN 'impressions of a document that is not in the hit list'
            WHEN listed THEN NULL
            WHEN base IS NULL
                THEN 'impressions without a hit list: to read ordinals, say --position-base impression=N'
            WHEN i.ordinal IS NULL OR NOT isfinite(i.ordinal) OR i.ordinal <> floor(i.ordinal)
                THEN 'impressions without a hit list and without a whole ordinal'
            WHEN i.ordinal < base THEN 'impressions whose ordinal is below the position base'
        END AS outcome
    FROM (
        SELECT *, getvariable('bases')['impression'] AS base FROM parsed WHERE kind = 'impression' AND outcome IS NULL
    ) AS i LEFT JOIN answers AS q USING (query_id);
CREATE TABLE at_odds AS
    SELECT query_id FROM (SELECT DISTINCT query_id, object_id, position FROM impressions WHERE outcome IS NULL)
    GROUP BY query_id HAVING least(count(DISTINCT object_id), count(DISTINCT position)) < count(*);
CREATE TABLE first_impressions AS
    SELECT min(n) AS n FROM impressions WHERE outcome IS NULL AND query_id NOT IN (FROM at_odds)
    GROUP BY query_id, object_id;
CREATE VIEW used AS
    SELECT query_id AS page FROM answers WHERE query_id NOT IN (FROM at_odds);
CREATE TABLE pages AS
    SELECT q.* EXCLUDE (places), docs, shown.places
    FROM answers AS q JOIN (
        SELECT query_id, ids AS docs, places FROM answers WHERE NOT getvariable('by_events')
        UNION ALL
        SELECT query_id, list(object_id ORDER BY position, n), list(position ORDER BY position, n)
        FROM impressions SEMI JOIN first_impressions USING (n) GROUP BY query_id
    ) AS shown USING (query_id);
CREATE VIEW shown AS
    SELECT
        query_id AS page, query_id AS visit, query_id AS key, unnest(docs) AS doc, n AS instant, NULL::BIGINT AS moment,
        struct_pack(page := n, place := unnest(places)) AS turn,
        CASE WHEN NOT listed THEN unnest(places) END AS place
    FROM pages;
CREATE VIEW clicks AS
    SELECT
        n, outcome, query_id AS page, query_id AS visit, query_id AS key, object_id AS doc, n AS instant,
        NULL::BIGINT AS moment, ordinal - getvariable('bases')[action] + 1 AS said,
        CASE WHEN ordinal = floor(ordinal) AND ordinal BETWEEN 0 AND 50 THEN CAST(ordinal AS BIGINT) END AS place
    FROM parsed WHERE kind = 'click';
CREATE VIEW decided AS
    SELECT outcome, action, file, line FROM parsed WHERE outcome IS NOT NULL
    UNION ALL
    SELECT CASE
        WHEN outcome IS NOT NULL THEN outcome
        WHEN query_id IN (FROM at_odds)
            THEN 'impressions and queries of pages with two documents at one position, or one at two'
        WHEN n IN (FROM first_impressions) THEN 'impressions'
        ELSE 'impressions that were seen before'
    END, NULL, file, line FROM impressions
    UNION ALL
    SELECT CASE
        WHEN result IS NOT NULL THEN result
        WHEN query_id IN (FROM at_odds)
            THEN 'impressions and queries of pages with two documents at one position, or one at two'
        WHEN query_id IN (SELECT query_id FROM pages) THEN 'queries'
        ELSE 'queries of which nothing was shown'
    END, NULL, file, line FROM queries;
CREATE VIEW counts AS
    WITH disagreeing AS (SELECT count(DISTINCT query_id) AS number FROM queries WHERE starts_with(result, 'queries whose'))
    SELECT
        (SELECT count(*) FROM shown) AS rows,
        (SELECT count(*) FROM clicks) AS clicks,
        (SELECT count(*) FROM impressions SEMI JOIN first_impressions USING (n) WHERE NOT listed) AS by_ordinal,
        (SELECT count(*) FROM answers) + number AS pages,
        (SELECT count(*) FROM at_odds) + number AS contradicting
    FROM disagreeing;
-- include: _clicks.sql
CREATE VIEW attributes AS
    SELECT query_id, map_from_entries(list(row(object_id, kept))) AS of_docs FROM (
        SELECT query_id, object_id, list(value ORDER BY i) AS kept FROM (
            SELECT query_id, object_id, i, CASE WHEN min(value) = max(value) THEN min(value) END AS value FROM (
                SELECT query_id, object_id, unnest(kept) AS value, generate_subscripts(kept, 1) AS i
                FROM parsed WHERE kind IN ('impression', 'click') AND query_id IS NOT NULL AND object_id IS NOT NULL
            ) GROUP BY ALL
        ) GROUP BY ALL
    ) GROUP BY query_id;
CREATE VIEW made AS
    SELECT
        query_id, user_query, unnest(docs) AS object_id, unnest(places) AS position,
        unnest(list_transform(docs, lambda x: CAST(list_contains(clicked, x) AS TINYINT))) AS click,
        timestamp, client_id, application, unnest(list_transform(docs, lambda x: of_docs[x])) AS kept
    FROM (
        SELECT p.*, coalesce(clicked, []) AS clicked, of_docs
        FROM pages AS p LEFT JOIN (
            SELECT page, list(doc) AS clicked FROM first_clicks GROUP BY page
        ) AS c ON p.query_id = c.page LEFT JOIN attributes USING (query_id)
        ORDER BY n
    );
