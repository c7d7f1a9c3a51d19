-- The rest of the queries of trackers whose events have a name and properties that each site names as it likes: rows of
-- `events (name, visit, timestamp, properties)` become impressions and clicks.
--
-- An event is a list that was shown if it holds one (products, items, results, ...), unless its name is about a cart or
-- an order; a click if its name says click, tap or select, and it names a document or a place; both, if it holds a list
-- and what was clicked in it. Places are `position`, `rank`, `index`, `slot` of an entry, or else its place in the list.
-- A click, or a list of clicks, that says only a place is looked up in its own list, or in the last one of the visit.
-- Whether such places count from 0 or from 1 is told by the log itself (some are 0, or some are as large as a list is
-- long) or by --position-base; where neither does, the query stops.
--
-- A page is a search id, where lists and clicks have one; else what a visit shows for a query at one time. Lists of
-- several names that would be one page are a page each; where each list id is used once, it is the search id.
--
-- Where some lists carry a query (or a search id, if none has a query), those without are no results pages: what is
-- recommended beside them is left out, and so are clicks without query and id on what such a list showed last. So are,
-- beside other lists, those whose event or name says that they recommend, suggest or complete, and, beside lists that
-- are called a search or results, those of other names in the same search, or in all where no list has a query or id.
bags AS (
    SELECT
        * EXCLUDE (properties),
        row_number() OVER () AS event,
        CASE json_type(properties) WHEN 'VARCHAR' THEN CAST(properties->>'$' AS JSON) ELSE properties END AS p,
        ' ' || lower(regexp_replace(
            regexp_replace(name, '([a-z0-9])([A-Z])', '\1 \2', 'g'), '[^A-Za-z0-9]+', ' ', 'g'
        )) || ' ' AS words
    FROM events
), named AS (
    SELECT
        * EXCLUDE (p),
        list_filter(json_extract_string(p, [
            'query', 'search_query', 'searchQuery', 'Search Query', 'search_term', 'searchTerm', 'Search Term', 'term',
            'keyword', 'Keyword', 'keywords', 'search_text', 'q', 'Query', 'search'
        ]), lambda x: trim(x) <> '' AND x[1] NOT IN ('[', '{'))[1] AS term,
        list_filter(json_extract_string(p, [
            'list_name', 'listName', 'List Name', 'list', 'placement', 'Placement', 'widget', 'module', 'carousel'
        ]), lambda x: trim(x) <> '' AND x[1] NOT IN ('[', '{'))[1] AS list_name,
        list_filter(json_extract_string(p, [
            'category', 'Category', 'page_type'
        ]), lambda x: trim(x) <> '' AND x[1] NOT IN ('[', '{'))[1] AS category,
        nullif(trim(coalesce(p->>'list_id', p->>'listId', p->>'List ID')), '') AS list_id,
        list_filter(json_extract_string(p, [
            'search_id', 'searchId', 'Search ID', 'query_id', 'queryId', 'queryID', 'Query ID', 'request_id',
            'requestId', 'serp_id', 'serpId', 'impression_id', 'impressionId', 'page_view_id', 'pageViewId'
        ]), lambda x: trim(x) <> '')[1] AS id,
        list_filter(json_extract_string(p, [
            'product_id', 'productId', 'Product ID', 'item_id', 'itemId', 'Item ID', 'result_id', 'resultId',
            'Result ID', 'doc_id', 'docId', 'document_id', 'documentId', 'object_id', 'objectId', 'objectID',
            'listing_id', 'listingId', 'content_id', 'contentId', 'clicked_id', 'clickedId', 'clicked_item',
            'clicked_result', 'clicked_product', 'doc', 'document', 'sku', 'item', 'product', 'result', 'id'
        ]), lambda x: trim(x) <> '' AND x[1] NOT IN ('[', '{'))[1] AS doc,
        TRY_CAST(list_filter(json_extract_string(p, [
            'position', 'Position', 'rank', 'Rank', 'index', 'Index', 'slot', 'Slot', 'result_position',
            'resultPosition', 'Result Position', 'item_position', 'clicked_position', 'clickedPosition',
            'click_position', 'clickPosition', 'clicked_index', 'clickedIndex', 'clicked_rank', 'result_rank'
        ]), lambda x: trim(x) <> '')[1] AS BIGINT) AS place,
        list_transform(json_extract(p, [
            '$.products', '$.Products', '$.items', '$.Items', '$.results', '$.Results', '$.hits', '$.documents',
            '$.docs', '$.product_ids', '$.productIds', '$."Product IDs"', '$.item_ids', '$.itemIds', '$.result_ids',
            '$.resultIds', '$."Result IDs"', '$.doc_ids', '$.docIds', '$.object_ids', '$.objectIds', '$.objectIDs',
            '$.listings', '$.impressions', '$.shown', '$.shown_items', '$.ids', '$.doc', '$.doc_id', '$.document',
            '$.document_id', '$.item', '$.item_id', '$.product', '$.product_id', '$.result'
        ]), lambda x: CASE
            WHEN json_type(x) = 'VARCHAR' AND trim(x->>'$')[1] = '[' THEN CAST(x->>'$' AS JSON) ELSE x
        END) AS lists,
        json_extract(p, [
            '$.clicked', '$.Clicked', '$.clicks', '$.clicked_ids', '$.clickedIds', '$.clicked_items', '$.clickedItems',
            '$.clicked_products', '$.clickedProducts', '$.clicked_results', '$.clickedResults', '$.clicked_docs',
            '$.clicked_positions', '$.clickedPositions', '$."Clicked Positions"', '$.clicked_indices',
            '$.clickedIndices', '$.clicked_indexes', '$.clicked_ranks', '$.clickedRanks', '$.clicked_id', '$.clickedId',
            '$.clicked_item', '$.clicked_product', '$.clicked_result', '$.clicked_position', '$.clickedPosition',
            '$.clicked_index', '$.clickedIndex', '$.clicked_rank'
        ]) AS clicked
    FROM bags
), held AS (
    SELECT
        * EXCLUDE (lists, clicked),
        coalesce(list_filter(lists, lambda x: json_type(x) = 'ARRAY' AND json_array_length(x) > 0)[1]->'$[*]', [])
            AS list,
        list_transform(list_filter(clicked, lambda x: json_type(x) NOT IN ('NULL', 'OBJECT')), lambda x: CASE
            WHEN json_type(x) = 'ARRAY' THEN x->'$[*]' ELSE [x]
        END)[1] AS clicked,
        regexp_matches(words, ' (click|clicks|clicked|clickthrough|tap|tapped|select|selected) ') AS is_click,
        regexp_matches(
            words, ' (cart|basket|checkout|order|purchase|purchased|wishlist|payment|coupon|refund|refunded|promotion) '
        ) AS is_order,
        regexp_matches(words, ' (impression|impressions|shown|displayed|seen|exposed|exposure|rendered|served) ')
            AS is_one
    FROM named
), entries AS (
    SELECT
        * EXCLUDE (list),
        list_transform(list, lambda i: CASE WHEN json_type(i) <> 'OBJECT' THEN i->>'$' ELSE
            list_filter(json_extract_string(i, [
                'product_id', 'productId', 'item_id', 'itemId', 'result_id', 'resultId', 'doc_id', 'docId',
                'document_id', 'documentId', 'object_id', 'objectId', 'objectID', 'listing_id', 'listingId',
                'content_id', 'contentId', 'doc', 'document', 'id', 'Id', 'ID', 'sku', 'item', 'product', 'name'
            ]), lambda x: trim(x) <> '')[1]
        END) AS docs,
        list_transform(list, lambda i: CASE WHEN json_type(i) = 'OBJECT' THEN TRY_CAST(
            list_filter(json_extract_string(i, ['position', 'rank', 'index', 'slot', 'Position', 'Rank', 'Index']),
                lambda x: trim(x) <> '')[1] AS BIGINT) END) AS places,
        list_transform(list, lambda i: CASE WHEN json_type(i) = 'OBJECT'
            THEN lower(coalesce(i->>'clicked', i->>'click', i->>'is_clicked')) IN ('true', '1') END) AS flags
    FROM held
), all_lists AS (
    SELECT
        * EXCLUDE (docs, places, clicked, flags, doc),
        docs,
        len(list_filter(places, lambda x: x IS NOT NULL)) > 0 AS numbered,
        places,
        flags,
        clicked,
        coalesce(doc, CASE WHEN is_click AND len(docs) = 1 THEN docs[1] END) AS doc,
        len(docs) > 0 AND NOT is_order AND NOT (is_click AND (doc IS NOT NULL OR len(docs) = 1)) AS shows,
        -- A list of clicks: documents, whether each was clicked, or places.
        CASE
            WHEN coalesce(len(clicked), 0) = 0 THEN NULL
            WHEN json_type(clicked[1]) = 'BOOLEAN' THEN 'flags'
            WHEN json_type(clicked[1]) = 'OBJECT' OR list_has_all(docs, list_transform(clicked, lambda c: c->>'$'))
            THEN 'docs'
            WHEN TRY_CAST(clicked[1]->>'$' AS BIGINT) IS NULL THEN 'docs'
            ELSE 'places'
        END AS clicks_are
    FROM entries
), identified AS (
    SELECT
        * EXCLUDE (id, list_name, list_id, category),
        CASE WHEN once THEN coalesce(id, list_id) ELSE id END AS id,
        CASE WHEN once THEN list_name ELSE coalesce(list_name, list_id) END AS called,
        coalesce(list_name, CASE WHEN NOT once THEN list_id END, category) AS list_name,
        regexp_matches(
            words || regexp_replace(lower(coalesce(called, '')), '[^a-z0-9]+', ' ', 'g'),
            '\b(recommend\w*|recs?|related|similar|upsells?|cross ?sells?|also|recently|trending|best ?sellers?|'
            || 'frequently|autocomplet\w*|typeahead|suggest\w*)\b'
        ) AS is_aside,
        regexp_matches(lower(called), 'search|result|serp') AS is_called_so,
        shows OR (is_one AND NOT is_click AND NOT is_order AND doc IS NOT NULL) AS is_shown
    -- Names of lists come again: ten lists, nine of ten with an id of their own, are no names.
    FROM all_lists, (
        SELECT count(list_id) >= 10 AND count(DISTINCT list_id) >= 0.9 * count(list_id) AS once
        FROM all_lists WHERE shows
    )
), searched_for AS (  -- a list may have its query from another event of its id
    SELECT
        * EXCLUDE (term), coalesce(term, CASE WHEN id IS NOT NULL THEN max(term) OVER (PARTITION BY id) END) AS term,
        coalesce(id, visit || ' ' || term) AS search
    FROM identified
), candidates AS (
    SELECT *, is_shown AND coalesce(CASE
        WHEN bool_or(term IS NOT NULL) FILTER (is_shown) OVER () THEN term IS NOT NULL
        WHEN bool_or(id IS NOT NULL) FILTER (is_shown) OVER () THEN id IS NOT NULL
        WHEN bool_or(is_called_so) FILTER (is_shown) OVER () AND bool_or(term IS NOT NULL) OVER ()
        THEN is_called_so OR called IS NULL
    END, true) AND NOT (is_aside AND bool_or(NOT is_aside) FILTER (is_shown) OVER ()) AS may_be
    FROM searched_for
), names AS (  -- whether a search shows lists of several names, one of which is called results
    SELECT coalesce(bool_or(number > 1 AND are_so), false) AS tell FROM (
        SELECT count(DISTINCT coalesce(called, '')) AS number, bool_or(is_called_so) AS are_so
        FROM candidates WHERE may_be AND search IS NOT NULL GROUP BY search
    )
), of_lists AS (
    SELECT * EXCLUDE (may_be), may_be AND (NOT tell OR coalesce(is_called_so, false)) AS is_result
    FROM candidates, names
), others AS (  -- ids and names of lists that are no results, and of those that are
    SELECT
        coalesce(bool_or(is_aside AND NOT is_result), false) AS any_aside,
        list(DISTINCT id) FILTER (NOT is_result) AS other_ids, list(DISTINCT id) FILTER (is_result) AS ids,
        list(DISTINCT called) FILTER (NOT is_result) AS other_names, list(DISTINCT called) FILTER (is_result) AS names
    FROM of_lists WHERE is_shown
), judged AS (
    SELECT
        of_lists.* EXCLUDE (is_result, is_aside),
        CASE
            WHEN is_shown THEN is_result
            WHEN bool_or(term IS NOT NULL) FILTER (is_shown) OVER () THEN term IS NOT NULL OR id IS NOT NULL
            WHEN bool_or(id IS NOT NULL) FILTER (is_shown) OVER () THEN id IS NOT NULL
            ELSE NOT coalesce(bool_or(NOT is_result) FILTER (is_shown) OVER (), false)
        END AS of_results,
        NOT is_shown AND (
            (is_aside AND any_aside)
            OR coalesce(list_contains(other_ids, id) AND NOT list_contains(coalesce(ids, []), id), false)
            OR coalesce(list_contains(other_names, called) AND NOT list_contains(coalesce(names, []), called), false)
        ) AS is_elsewhere
    FROM of_lists, others
), last_shown AS (  -- what a click may be on: if it has a query or id, on results only; of one time, the last event
    SELECT
        visit, epoch_us(timestamp) * 9223372036854775808::HUGEINT + event AS instant, shows,
        CASE WHEN shows THEN docs ELSE [doc] END AS docs, places, numbered, list_name, of_results,
        unnest([true, false]) AS with_query
    FROM judged WHERE is_shown AND visit IS NOT NULL
), clicks_on AS (
    SELECT c.event, l.docs, l.places, l.numbered, l.list_name, l.of_results
    FROM (
        SELECT event, visit, epoch_us(timestamp) + 1 AS after, of_results AS with_query FROM judged
        WHERE is_click AND NOT is_order AND NOT shows AND doc IS NULL AND place IS NOT NULL
    ) AS c
    ASOF JOIN (FROM last_shown WHERE shows AND with_query <= of_results) AS l
    ON c.visit = l.visit AND c.with_query = l.with_query AND c.after * 9223372036854775808::HUGEINT > l.instant
    UNION ALL BY NAME
    SELECT c.event, l.list_name, l.of_results
    FROM (
        SELECT event, visit, epoch_us(timestamp) + 1 AS after, doc, of_results AS with_query FROM judged
        WHERE is_click AND NOT is_order AND NOT shows AND doc IS NOT NULL
    ) AS c
    ASOF JOIN (
        SELECT * EXCLUDE (docs), unnest(docs) AS doc FROM last_shown WHERE with_query <= of_results
    ) AS l
    ON c.visit = l.visit AND c.with_query = l.with_query AND c.doc = l.doc
        AND c.after * 9223372036854775808::HUGEINT > l.instant
), lists AS (
    SELECT
        * EXCLUDE (shows, is_one, is_click, is_elsewhere, list_name, of_results, last),
        last,
        shows AND of_results AS shows,
        is_one AND is_shown AND of_results AS is_one,
        is_click AND NOT is_elsewhere AND coalesce(last.of_results, of_results OR NOT is_shown) AS is_click,
        coalesce(
            CASE WHEN list_name IN (SELECT list_name FROM judged WHERE is_shown) THEN list_name END, last.list_name
        ) AS list_name
    FROM judged LEFT JOIN (SELECT event, clicks_on AS last FROM clicks_on) USING (event)
), clicked_places AS (
    SELECT visit, timestamp, id, list_name, place, last.docs, last.places, last.numbered
    FROM lists
    WHERE is_click AND NOT is_order AND NOT shows AND doc IS NULL AND place IS NOT NULL
    UNION ALL BY NAME
    SELECT visit, timestamp, id, list_name,
        unnest(list_transform(clicked, lambda c: TRY_CAST(c->>'$' AS BIGINT))) AS place, docs, places, numbered
    FROM lists WHERE shows AND clicks_are = 'places'
    UNION ALL BY NAME
    SELECT visit, timestamp, id, list_name, place, docs, places, numbered FROM lists
    WHERE shows AND is_click AND place IS NOT NULL AND clicks_are IS NULL
), base AS (
    SELECT coalesce(
        getvariable('position_base'),
        CASE
            WHEN count(*) = 0 THEN 1
            WHEN min(place) = 0 AND max(place - len(docs)) < 0 THEN 0
            WHEN min(place) >= 1 AND max(place - len(docs)) >= 0 THEN 1
            ELSE error('clicks say the place of what was clicked, and not whether places count from 0 or from 1 (they '
                || 'are ' || min(place) || ' to ' || max(place) || '). Use --position-base 0 or --position-base 1.')
        END
    ) AS base, coalesce(getvariable('position_base'), 1) AS top  -- in the rows
    FROM clicked_places WHERE NOT numbered AND docs IS NOT NULL
), found AS (
    SELECT
        visit, timestamp, id, list_name,
        docs[CASE WHEN numbered THEN list_position(places, place) WHEN place >= base THEN place - base + 1 END] AS doc,
        CASE WHEN numbered THEN place ELSE place - base + top END AS place
    FROM clicked_places, base
), all_rows AS (
    SELECT
        'impression' AS kind, visit, timestamp, id, term, list_name, unnest(docs) AS doc,
        unnest(CASE WHEN numbered THEN places ELSE list_transform(range(len(docs)), lambda n: n + top) END) AS position
    FROM lists, base WHERE shows
    UNION ALL BY NAME
    SELECT 'impression' AS kind, visit, timestamp, id, term, list_name, doc, place AS position
    FROM lists WHERE is_one AND NOT shows AND NOT is_click AND NOT is_order AND doc IS NOT NULL
    UNION ALL BY NAME
    SELECT 'click' AS kind, visit, timestamp, id, list_name, doc, place AS position FROM found
    UNION ALL BY NAME
    SELECT 'click' AS kind, visit, timestamp, id, list_name, doc, place AS position
    FROM lists WHERE is_click AND NOT is_order AND NOT shows AND (doc IS NOT NULL OR place IS NULL)
    UNION ALL BY NAME
    SELECT 'click' AS kind, visit, timestamp, id, list_name, unnest(CASE clicks_are
        WHEN 'docs' THEN list_transform(clicked, lambda c: coalesce(c->>'product_id', c->>'item_id', c->>'id', c->>'$'))
        ELSE list_filter(docs, lambda d, n: (clicked[n]->>'$') = 'true')
    END) AS doc
    FROM lists WHERE shows AND clicks_are IN ('docs', 'flags')
    UNION ALL BY NAME
    SELECT 'click' AS kind, visit, timestamp, id, list_name, unnest(list_filter(docs, lambda d, n: flags[n])) AS doc
    FROM lists WHERE shows AND clicks_are IS NULL
    UNION ALL BY NAME
    SELECT coalesce(name, '') AS kind, visit, timestamp, id, term FROM lists
    WHERE NOT shows AND NOT (is_one AND NOT is_click AND NOT is_order AND doc IS NOT NULL)
        AND NOT (is_click AND NOT is_order)
), searched AS (
    SELECT *, CASE
        WHEN visit IS NOT NULL AND timestamp IS NOT NULL
            THEN last_value(term IGNORE NULLS) OVER (PARTITION BY visit ORDER BY timestamp)
    END AS last_term
    FROM all_rows
), ids AS (
    SELECT
        coalesce(bool_and(id IS NOT NULL) FILTER (kind = 'impression'), false)
        AND coalesce(bool_or(id IS NOT NULL) FILTER (kind = 'click'), false) AS known,
        coalesce(bool_or(timestamp IS NOT NULL) FILTER (kind IN ('impression', 'click')), true) AS timed
    FROM all_rows
), pages AS (
    SELECT
        kind,
        CASE WHEN known THEN id ELSE visit END AS visit,
        list_name,
        coalesce(
            term,
            CASE WHEN list_name IS NULL OR regexp_matches(lower(list_name), 'search|result') THEN last_term END,
            list_name
        ) AS query,
        doc,
        position,
        CASE
            WHEN known THEN coalesce(  -- ids need no times
                min(timestamp) FILTER (kind = 'impression') OVER (PARTITION BY id),
                min(timestamp) OVER (PARTITION BY id),
                TIMESTAMP '1970-01-01'
            )
            WHEN NOT timed THEN CAST(error('no event has a time that can be read, and lists and clicks name no common id '
                || 'of a page (' || kind || '). Log one, such as search_id, with both; or when each event happened.')
                AS TIMESTAMP)
            ELSE timestamp
        END AS timestamp
    FROM searched, ids
)
SELECT * EXCLUDE (list_name, several)
    REPLACE (visit || CASE WHEN several THEN coalesce(' ' || list_name, '') ELSE '' END AS visit)
FROM pages, (
    SELECT coalesce(bool_or(names > 1), false) AS several
    FROM (
        SELECT count(DISTINCT list_name) AS names FROM pages WHERE kind = 'impression'
        GROUP BY visit, query, timestamp
    )
)
