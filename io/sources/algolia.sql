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
--
-- Where there are no answers and no view names its queryID, as Algolia's own clients send them, each view is a page, in
-- the order of its objects, and a click after a search is on the last one of its user that showed the object. That order
-- is what clicks say, too: if over 2 % of them name another position, or most are on no such view, the query stops.
WITH sent AS (
    SELECT
        nullif(e->>'queryID', '') AS page,
        e->>'eventType' AS type,
        nullif(coalesce(e->>'query', e->>'$.params.query'), '') AS query,
        CASE
            WHEN clock IS NULL THEN CAST(TRY_CAST(e->>'timestamp' AS TIMESTAMPTZ) AS TIMESTAMP)
            ELSE make_timestamp(CAST(clock * CASE WHEN clock < 1e11 THEN 1e6 WHEN clock < 1e14 THEN 1e3 ELSE 1 END AS BIGINT))
        END AS timestamp,
        coalesce(json_type(e->'hits') = 'ARRAY', false) AS is_answer,
        coalesce(e->>'userToken', e->>'authenticatedUserToken') AS user,
        coalesce(CASE WHEN json_type(e->'hits') = 'ARRAY' THEN e->'$.hits[*]' ELSE e->'$.objectIDs[*]' END, [])
            AS objects,
        coalesce(e->'$.positions[*]', []) AS positions,
        coalesce(TRY_CAST(e->>'page' AS BIGINT) * TRY_CAST(e->>'hitsPerPage' AS BIGINT), 0) AS above,
        row_number() OVER () AS number
    FROM (
        SELECT e, TRY_CAST(e->>'timestamp' AS DOUBLE) AS clock FROM (SELECT to_json(log) AS e FROM log)
    )
), are AS (
    SELECT coalesce(bool_and(NOT is_answer AND (type <> 'view' OR page IS NULL)), false)
        AND coalesce(bool_or(type = 'click' AND page IS NOT NULL AND len(positions) > 0), false) AS apart
    FROM sent
), places AS (
    SELECT
        * EXCLUDE (objects, positions), unnest(objects)->>'$' AS doc,
        unnest(CASE WHEN len(positions) = len(objects)
            THEN list_transform(positions, lambda p: TRY_CAST(p->>'$' AS BIGINT))
            ELSE list_transform(objects, lambda o: CAST(NULL AS BIGINT))
        END) AS said,
        generate_subscripts(objects, 1) AS place,
        coalesce(epoch_us(timestamp), 0) * 1099511627776::HUGEINT + number AS instant
    FROM sent, are WHERE apart AND type IN ('view', 'click') AND user IS NOT NULL
), views AS (  -- the view that each click is on
    SELECT c.number, any_value(v.number) AS of_view, bool_and(c.said = v.place) AS agree
    FROM (FROM places WHERE type = 'click' AND page IS NOT NULL) AS c
    ASOF LEFT JOIN (FROM places WHERE type = 'view') AS v
    ON c.user = v.user AND c.doc = v.doc AND c.instant >= v.instant
    GROUP BY c.number
), agreement AS (
    SELECT CASE
        WHEN count(*) > 0 AND (
            count(of_view) <= 0.5 * count(*) OR count(*) FILTER (NOT agree) > 0.02 * count(agree)
        ) THEN error('views name no queryID, and clicks say other positions than their objects have in the view before: '
            || 'of ' || count(*) || ' clicks after a search, ' || count(of_view) || ' are on such a view, '
            || count(*) FILTER (NOT agree) || ' of them at another place. Send queryID and query with views, or add the '
            || 'answers of searches (queryID, query, hits) to the files.')
        ELSE true
    END AS good
    FROM views
), events AS (
    SELECT sent.* EXCLUDE (page), CASE
        WHEN apart AND type = 'view' THEN 'view ' || number
        WHEN apart AND type = 'click' AND page IS NOT NULL THEN coalesce('view ' || of_view, page)
        ELSE page
    END AS page
    FROM sent LEFT JOIN views USING (number), are, agreement WHERE good
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
