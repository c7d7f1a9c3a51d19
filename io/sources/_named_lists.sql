-- The rest of the queries of trackers whose lists have names: rows of `events (kind, visit, term, list, doc, position,
-- timestamp, ...)` with a query each. It is what was searched for, or else the name of the list.
--
-- Where some lists carry a query, those without are no results pages, nor are, beside lists that are called like the
-- query, a search or results, those of other names (recommendations on the same page): they are left out, with clicks
-- that name them. Lists of several names that would be one page are a page each.
listed AS (
    SELECT *, coalesce(
        list IS NULL OR lower(list) = lower(term) OR regexp_matches(lower(list), 'search|result'), false
    ) AS is_alike
    FROM events
), judged AS (
    SELECT *, kind = 'impression' AND coalesce(
        (term IS NULL AND bool_or(term IS NOT NULL) FILTER (kind = 'impression') OVER ())
        OR (NOT is_alike AND bool_or(is_alike AND term IS NOT NULL) FILTER (kind = 'impression') OVER ()),
        false
    ) AS is_other
    FROM listed
), kept AS (
    SELECT
        * EXCLUDE (kind, list, term, is_alike, is_other),
        CASE
            WHEN is_other THEN 'a list that is no results page'
            WHEN kind = 'click'
                AND coalesce(list IN (SELECT list FROM judged WHERE is_other AND list IS NOT NULL), false)
                AND list NOT IN (
                    SELECT list FROM judged WHERE kind = 'impression' AND NOT is_other AND list IS NOT NULL
                )
            THEN 'a click on a list that is no results page'
            ELSE kind
        END AS kind,
        list,
        coalesce(term, list) AS query
    FROM judged
)
SELECT * EXCLUDE (list, several)
    REPLACE (visit || CASE WHEN several THEN coalesce(' ' || list, '') ELSE '' END AS visit)
FROM kept, (
    SELECT coalesce(bool_or(names > 1), false) AS several
    FROM (
        SELECT count(DISTINCT list) AS names FROM kept WHERE kind = 'impression' GROUP BY visit, query, timestamp
    )
)
