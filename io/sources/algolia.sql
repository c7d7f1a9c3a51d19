-- title: Algolia Insights
-- columns: eventType eventName objectIDs
-- columns: eventType userToken objectIDs
-- columns: queryID hits
-- options: --impression-where kind=impression --click-where kind=click --session page
--
-- Events that were sent to Algolia's Insights API, and answers to searches (clickAnalytics: true), a JSON object a line,
-- in one file or several:
--   eventType    click, view or conversion; eventName, index, userToken, timestamp (milliseconds since 1970)
--   queryID      the search that showed the objects, on its answer and on clicks after it
--   objectIDs    what was clicked or viewed, up to 20
--   positions    where each of them stood, from 1 on, over all pages of results
--   hits         of an answer: objectID each, from the top; with page (from 0), hitsPerPage, query
--
-- A page is a queryID. What it showed are the hits of its answer or, where there is none, the objects of its views: at
-- their positions, or else in the order in which they were first viewed. Views and clicks outside of a search have no
-- queryID, and are events of other kinds. Without answers, the query is only known if events name it.
WITH events AS (
    SELECT
        nullif(e->>'queryID', '') AS page,
        e->>'eventType' AS type,
        nullif(coalesce(e->>'query', e->>'$.params.query'), '') AS query,
        CASE
            WHEN clock IS NULL THEN CAST(TRY_CAST(e->>'timestamp' AS TIMESTAMPTZ) AS TIMESTAMP)
            ELSE make_timestamp(CAST(clock * CASE WHEN clock < 1e11 THEN 1e6 WHEN clock < 1e14 THEN 1e3 ELSE 1 END AS BIGINT))
        END AS timestamp,
        json_type(e->'hits') = 'ARRAY' AS is_answer,
        coalesce(CASE WHEN json_type(e->'hits') = 'ARRAY' THEN e->'$.hits[*]' ELSE e->'$.objectIDs[*]' END, [])
            AS objects,
        coalesce(e->'$.positions[*]', []) AS positions,
        coalesce(TRY_CAST(e->>'page' AS BIGINT) * TRY_CAST(e->>'hitsPerPage' AS BIGINT), 0) AS above,
        row_number() OVER () AS number
    FROM (
        SELECT e, TRY_CAST(e->>'timestamp' AS DOUBLE) AS clock FROM (SELECT to_json(log) AS e FROM log)
    )
), of_pages AS (
    SELECT page, bool_or(is_answer) AS answered, max(query) AS query FROM events WHERE page IS NOT NULL GROUP BY page
), kinds AS (
    SELECT
        events.* EXCLUDE (query),
        of_pages.query,
        CASE
            WHEN is_answer AND len(objects) > 0 THEN 'impression'
            WHEN is_answer THEN 'search without hits'
            WHEN type = 'click' AND events.page IS NOT NULL AND len(objects) > 0 THEN 'click'
            WHEN type = 'view' AND len(objects) > 0 AND NOT answered THEN 'impression'
            WHEN type IN ('view', 'click') AND events.page IS NULL THEN type || ' outside of a search'
            ELSE coalesce(type, '')
        END AS kind
    FROM events LEFT JOIN of_pages USING (page)
), rows AS (
    SELECT
        * EXCLUDE (objects, positions),
        unnest(CASE WHEN kind IN ('impression', 'click') THEN objects ELSE [NULL] END) AS object,
        generate_subscripts(CASE WHEN kind IN ('impression', 'click') THEN objects ELSE [NULL] END, 1) AS place,
        positions
    FROM kinds
), placed AS (
    SELECT
        kind, page, query, timestamp, is_answer, number, place,
        coalesce(object->>'objectID', object->>'$') AS doc,
        CASE
            WHEN is_answer THEN coalesce(TRY_CAST(object->>'__position' AS BIGINT), above + place)
            ELSE TRY_CAST(positions[place]->>'$' AS BIGINT)
        END AS position
    FROM rows
), first_viewed AS (
    SELECT page, doc, row_number() OVER (PARTITION BY page ORDER BY min(number * 1000 + place)) AS position
    FROM placed WHERE kind = 'impression' AND NOT is_answer GROUP BY page, doc
)
SELECT
    kind, page, query, doc,
    coalesce(placed.position, CASE WHEN kind = 'impression' THEN first_viewed.position END) AS position,
    timestamp
FROM placed LEFT JOIN first_viewed USING (page, doc)
