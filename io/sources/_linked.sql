-- The rest of `linked.sql`, which reads records of JSON as `events`. Fields are paths (`results[*].id`), of values that
-- are no lists. What they are is found in the first 5,000 records of each structure:
--
--   shown, page_id       in a record with a list of two or more: an item each, all different; and a value that nearly
--                        every such record has for itself
--   click_id, clicked    in a record without such a list, or with one of one item: that value, and one of the items
--                        that were shown under it (if half of these clicks have one, which two must have at least)
--   kind                 tells pages from clicks, where there is such a field; query, times and visits go by names
--   place                the position that a click names, in the list or over all pages
--   start, number        where the list of a page begins: said by the page itself, or by another record with its id
--
-- Where clicks say positions, these must be those of their items, or the query stops.
numbered AS (
    SELECT *, row_number() OVER (PARTITION BY json_structure(e) ORDER BY n) <= 5000 AS picked
    FROM (SELECT e, row_number() OVER () AS n FROM events)
), atoms AS MATERIALIZED (
    SELECT n, picked, t.fullkey AS at_path, trim(t.atom->>'$') AS v
    FROM numbered, json_tree(e) AS t WHERE t.type IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'DOUBLE')
    UNION ALL
    SELECT  -- an entry of a list that is a name and a value, as GA4 writes them: a field of that name
        n, picked, regexp_replace(t.fullkey, '\[\d+\]$', '.') || (t.value->>'$.key'), trim(coalesce(
            t.value->>'$.value.string_value', t.value->>'$.value.int_value', t.value->>'$.value.double_value',
            CASE WHEN json_type(t.value->'$.value') <> 'OBJECT' THEN t.value->>'$.value' END
        ))
    FROM numbered, json_tree(e) AS t
    WHERE t.type = 'OBJECT' AND t.fullkey[-1] = ']' AND json_type(t.value->'$.key') = 'VARCHAR'
), leaves AS MATERIALIZED (
    SELECT
        n, picked, regexp_replace(at_path, '\[\d+\]', '[*]', 'g') AS path,
        TRY_CAST(nullif(regexp_extract(at_path, '\[(\d+)\]', 1), '') AS INTEGER) AS i, v
    FROM (
        FROM atoms
        UNION ALL
        SELECT n, picked, at_path || substr(t.fullkey, 2), trim(t.atom->>'$')  -- lists and objects as text
        FROM atoms, json_tree(CASE WHEN v[1] IN ('[', '{') AND json_valid(v) THEN v ELSE 'null' END) AS t
        WHERE t.type IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'DOUBLE')
        UNION ALL
        SELECT
            n, picked, at_path || '[' || unnest(range(len(parts))) || ']', unnest(parts)  -- ids with a mark between them
        FROM (
            SELECT *, regexp_split_to_array(v, '\s*[,;|]\s*') AS parts
            FROM atoms WHERE regexp_full_match(v, '[^\s,;|]+(\s*[,;|]\s*[^\s,;|]+)+')
        )
    )
    WHERE v <> '' AND len(v) <= 2000 AND len(regexp_extract_all(at_path, '\[\d+\]')) <= 1
), seen AS MATERIALIZED (
    SELECT
        n, path, i, v, regexp_extract(path, '^.*\[\*\]') AS list,
        regexp_replace(lower(regexp_extract(path, '([^.$]+?)(\[\*\])?$', 1)), '[^\pL0-9]', '', 'g') AS name
    FROM leaves WHERE picked
), lists AS MATERIALIZED (
    SELECT n, list, max(i) + 1 AS length FROM seen WHERE i IS NOT NULL GROUP BY ALL
), long_lists AS (
    FROM lists WHERE length > 1
), flat AS MATERIALIZED (
    SELECT n, path, v, name, false AS of_list FROM seen WHERE i IS NULL
    UNION ALL
    SELECT n, path, v, name, true FROM seen JOIN lists USING (n, list) WHERE length = 1
), items AS MATERIALIZED (
    SELECT
        s.n, list, path, any_value(name) AS name, length, count(DISTINCT v) AS differing,
        min(TRY_CAST(v AS BIGINT)) AS least, count(TRY_CAST(v AS BIGINT)) = count(*) AS whole
    FROM seen AS s JOIN long_lists USING (n, list) GROUP BY ALL
), item_fields AS (
    SELECT
        list, path, avg(CAST(differing = length AS INTEGER)) AS differ,
        CASE WHEN avg(CAST(whole AND differing = length AS INTEGER)) >= .98 AND min(least) IN (0, 1)
            AND regexp_matches(name, 'position|rank|index|slot|ordinal|^pos$|^place$') THEN min(least)
        END AS base,  -- of positions
        max(least) AS latest, name
    FROM items GROUP BY list, path, name
), ids AS (
    SELECT
        list, path, count(DISTINCT v) / count(*) AS differ,
        avg(CAST(TRY_CAST(v AS TIMESTAMPTZ) IS NOT NULL OR regexp_matches(v, '^1\d{9}(\d{3}){0,3}(\.|$)') AS INTEGER)) > .5
            AS are_times
    FROM flat JOIN long_lists USING (n)
    WHERE NOT of_list OR NOT starts_with(path, list)
    GROUP BY list, path, name HAVING differ >= .5 OR differ >= .02 AND regexp_matches(
        name, 'session|visit|user|client|device|anonymous|distinct|cookie|browser|customer|member|^sid$|^[ug]?uid$'
    )
), named AS (
    SELECT p.n AS page, c.n AS click, p.list, p.path AS page_id, c.path AS click_id, p.differ, p.are_times
    FROM (FROM flat JOIN long_lists USING (n) JOIN ids USING (list, path)) AS p
    JOIN flat AS c ON c.v = p.v AND c.n <> p.n AND (NOT c.of_list OR c.path = p.path)
    ANTI JOIN long_lists AS other ON other.n = c.n AND other.list = p.list
), held AS (
    SELECT m.*, c.path AS clicked, c.name
    FROM named AS m JOIN flat AS c ON c.n = m.click AND c.path <> m.click_id
), met AS (
    SELECT m.page, m.click, m.list, m.page_id, m.click_id, m.differ, m.are_times, c.path AS clicked, c.name, s.path AS shown, s.i
    FROM named AS m
    JOIN flat AS c ON c.n = m.click AND c.path <> m.click_id
    JOIN seen AS s ON s.n = m.page AND s.list = m.list AND s.v = c.v
), tried AS (
    SELECT
        list, page_id, click_id, m.differ, are_times, clicked, shown, m.name = f.name AS is_alike, f.name AS item,
        count(DISTINCT click) AS hits
    FROM met AS m JOIN item_fields AS f USING (list)
    WHERE f.path = shown AND f.differ >= .99 AND f.base IS NULL GROUP BY ALL
), tried_places AS (  -- clicks that say the place of their item alone, and no item
    SELECT
        m.list, page_id, click_id, differ, are_times, c.path AS clicked, f.path AS shown, false AS is_alike,
        f.name AS item, count(DISTINCT click) FILTER (TRY_CAST(c.v AS BIGINT) BETWEEN 0 AND length) AS hits,
        coalesce(getvariable('position_base'), CASE
            WHEN min(TRY_CAST(c.v AS BIGINT)) = 0 THEN 0
            WHEN max(TRY_CAST(c.v AS BIGINT) - length) >= 0 THEN 1
            ELSE -1
        END) AS top
    FROM named AS m JOIN flat AS c ON c.n = m.click AND c.path <> m.click_id
    JOIN long_lists AS l ON l.n = m.page AND l.list = m.list
    JOIN (SELECT list, path, name FROM item_fields WHERE item_fields.differ >= .99 AND base IS NULL) AS f ON f.list = m.list
    WHERE m.differ >= .5 AND regexp_matches(c.name, 'position|rank|index|slot|ordinal|^pos$|^place$') GROUP BY ALL
), chosen AS MATERIALIZED (
    SELECT t.*, differ < .5 AS is_visit
    FROM (SELECT *, NULL AS top FROM tried UNION ALL BY NAME FROM tried_places) AS t JOIN (
        SELECT list, page_id, click_id, clicked, count(DISTINCT click) AS clicks FROM held GROUP BY ALL
    ) AS h USING (list, page_id, click_id, clicked)
    JOIN (
        SELECT list, path AS shown, count(DISTINCT v) AS values FROM seen GROUP BY ALL
    ) USING (list, shown)
    WHERE hits >= 2 AND hits >= .5 * clicks
    ORDER BY
        top IS NULL DESC, are_times, is_visit, round(hits / clicks, 1) DESC, round(differ, 2) DESC, hits DESC,
        page_id = click_id DESC, len(page_id), page_id, click_id, regexp_matches(item, 'id$') DESC,
        regexp_matches(item, 'hash$|key$|sku$') DESC, is_alike DESC, values DESC, len(shown), shown, clicked
    LIMIT 1
), acts AS MATERIALIZED (
    SELECT m.page, m.click, c.v AS doc
    FROM named AS m JOIN chosen AS o USING (list, page_id, click_id)
    JOIN flat AS c ON c.n = m.click AND c.path = o.clicked
), pages AS MATERIALIZED (
    SELECT DISTINCT f.n, f.v AS id, l.length
    FROM flat AS f JOIN chosen AS o ON f.path = o.page_id JOIN long_lists AS l ON l.n = f.n AND l.list = o.list
), words AS (
    SELECT
        n, path, name, any_value(regexp_replace(v, '[?#].*', '')) AS v,
        any_value(' ' || lower(regexp_replace(
            regexp_replace(regexp_replace(v, '[?#].*', ''), '(\p{Ll}|\d)(\p{Lu})', '\1 \2', 'g'), '[^\pL0-9]+', ' ', 'g'
        )) || ' ') AS words
    FROM flat WHERE NOT of_list GROUP BY ALL
), of_acts AS (
    SELECT path, any_value(name) AS name, count(DISTINCT click) AS acts, list(DISTINCT v) AS values,
        bool_or(regexp_matches(words, ' (click|clicks|clicked|clickthrough|tap|tapped|select|selected) ')) AS says_click
    FROM words JOIN (SELECT DISTINCT click FROM acts) ON n = click GROUP BY path
    HAVING len(values) <= 30 AND acts >= .95 * (SELECT count(DISTINCT click) FROM acts)
), of_pages AS (
    SELECT path, list(DISTINCT v) AS values FROM words SEMI JOIN pages USING (n) GROUP BY path
), kind AS MATERIALIZED (
    SELECT path
    FROM of_acts LEFT JOIN of_pages AS p USING (path)
    WHERE NOT coalesce(list_has_any(of_acts.values, p.values), false)
        AND (says_click OR p.path IS NOT NULL OR regexp_matches(name, 'event|action|type|kind|verb|^name$'))
        AND path NOT IN (SELECT unnest([page_id, click_id, clicked]) FROM chosen)
    ORDER BY
        says_click DESC, p.path IS NOT NULL DESC, regexp_matches(name, 'event|action|type|kind|verb|^name$') DESC,
        len(of_acts.values), path
    LIMIT 1
), kinds AS (
    SELECT
        v, count(DISTINCT click) AS acts,
        regexp_matches(words, ' (click|clicks|clicked|clickthrough|tap|tapped|select|selected) ') AS says_click
    FROM words JOIN kind USING (path) JOIN (SELECT DISTINCT click FROM acts) ON n = click
    WHERE NOT regexp_matches(words, ' (cart|basket|bag|checkout|order|purchase|purchased|buy|wishlist|favorite|'
        || 'favourite|save|saved|payment|impression|impressions|shown|hover|scroll|dwell|visible|rating|review) ')
    GROUP BY ALL
), click_kinds AS MATERIALIZED (
    SELECT CASE
        WHEN bool_or(says_click) THEN list(v) FILTER (says_click) WHEN count(*) = 1 THEN list(v) ELSE []
    END AS those
    FROM kinds
), page_kinds AS MATERIALIZED (
    SELECT list(DISTINCT v) AS those
    FROM words JOIN kind USING (path) JOIN (SELECT DISTINCT page FROM acts) ON n = page
), clicks AS MATERIALIZED (
    SELECT a.* FROM acts AS a
    WHERE NOT EXISTS (FROM kind) OR EXISTS (
        SELECT 1 FROM words JOIN kind USING (path), click_kinds WHERE words.n = a.click AND list_contains(those, words.v)
    )
), of_names AS MATERIALIZED (
    SELECT
        path, name, count(DISTINCT n) / (SELECT count(*) FROM pages) AS share,
        count(DISTINCT v) / count(*) AS differ,
        avg(CAST(TRY_CAST(v AS TIMESTAMPTZ) IS NOT NULL AND contains(v, ':') AS INTEGER)) AS are_times,
        avg(CAST(TRY_CAST(v AS DOUBLE) BETWEEN 1e9 AND 5e18 AS INTEGER)) AS are_clocks,
        avg(CAST(TRY_CAST(v AS DOUBLE) IS NOT NULL AS INTEGER)) AS are_numbers,
        avg(CAST(regexp_matches(v, '[?&](q|query|search|search_query|searchterm|s|keyword|text|term)=[^&#]') AS INTEGER))
            AS are_addresses
    FROM flat SEMI JOIN pages USING (n) WHERE NOT of_list GROUP BY ALL
), query_names AS (
    SELECT unnest(names) AS name, generate_subscripts(names, 1) AS rank FROM (SELECT [
        'query', 'searchquery', 'querytext', 'searchterm', 'searchterms', 'searchtext', 'searchphrase', 'searchstring',
        'userquery', 'queryterm', 'querystring', 'term', 'keyword', 'keywords', 'phrase', 'q', 'qry', 'text', 'search'
    ] AS names)
), of_values AS (  -- a query is asked again, and has documents of its own
    SELECT
        path, count(DISTINCT f.v) AS values, count(*) / count(DISTINCT s.v) AS shown_by_doc,
        count(DISTINCT (f.v, s.v)) / count(DISTINCT s.v) AS values_by_doc
    FROM of_names JOIN flat AS f USING (path) JOIN pages USING (n)
    JOIN (SELECT n, v FROM seen JOIN chosen ON path = shown) AS s USING (n)
    WHERE NOT of_list AND share >= .3 AND differ < .5 AND are_numbers < .5 AND are_times < .5 GROUP BY path
), query AS MATERIALIZED (
    SELECT path, rank IS NULL AND are_addresses > 0 AS is_address
    FROM of_names LEFT JOIN query_names USING (name) LEFT JOIN of_values USING (path)
    WHERE share >= .3 AND path <> (SELECT page_id FROM chosen) AND (
        rank IS NOT NULL OR are_addresses >= .3 OR values_by_doc <= .5 * least(values, shown_by_doc) AND values > 1
    )
    ORDER BY rank NULLS LAST, are_addresses >= .3 DESC, regexp_matches(name, 'query|term|keyword|phrase|search') DESC,
        values DESC, len(path), path
    LIMIT 1
), clock AS MATERIALIZED (
    SELECT path FROM of_names
    WHERE share >= .95 AND (are_times >= .95 OR are_clocks >= .95 AND regexp_matches(name, 'time|date|^ts?$|dt$|at$|clock|moment'))
    ORDER BY regexp_matches(name, 'event|timestamp|^time$|^ts?$') DESC, are_times DESC, differ DESC, len(path), path
    LIMIT 1
), visit AS MATERIALIZED (
    SELECT path FROM of_names
    WHERE share >= .95 AND regexp_matches(name, '^(session|visit|visitor|client|user|anonymous|device|distinct)(id|uid)?$|^sid$|^uid$')
        AND path <> (SELECT page_id FROM chosen)
    ORDER BY regexp_matches(name, '^(session|visit(id|$)|sid)') DESC, len(path), path LIMIT 1
), place_field AS (  -- positions that clicks name
    SELECT path FROM flat JOIN (SELECT DISTINCT click FROM clicks) ON n = click
    WHERE NOT of_list AND regexp_matches(name, 'position|rank|index|slot|ordinal|^pos$|^place$')
        AND (SELECT top IS NULL AND NOT is_visit FROM chosen)
    GROUP BY path HAVING count(TRY_CAST(v AS BIGINT)) >= .95 * (SELECT count(DISTINCT click) FROM clicks)
), item_place AS MATERIALIZED (
    SELECT f.path, f.base, latest FROM item_fields AS f JOIN chosen USING (list)
    WHERE f.base IS NOT NULL ORDER BY len(f.path), f.path LIMIT 1
), page_numbers AS MATERIALIZED (  -- whole numbers that pages say of themselves
    SELECT n, path, name, TRY_CAST(v AS BIGINT) AS x
    FROM flat SEMI JOIN pages USING (n) WHERE NOT of_list AND TRY_CAST(v AS BIGINT) IS NOT NULL
), size AS (
    SELECT max(length) AS size FROM pages
), starts AS MATERIALIZED (  -- ways to know how many results stand above a list
    SELECT path, name, false AS is_number, min(x) AS least, count(DISTINCT x) AS values
    FROM page_numbers WHERE regexp_matches(name, 'offset|^start|start$|^from$|first|^skip')
    GROUP BY ALL HAVING least IN (0, 1)
    UNION ALL
    SELECT path, name, true, min(x) AS least, count(DISTINCT x) AS values
    FROM page_numbers
    WHERE regexp_matches(name, 'page|pager')
        AND NOT regexp_matches(name, 'size|per|count|total|id$|limit|load|time|pages$')
    GROUP BY ALL HAVING least IN (0, 1) AND max(x) < 10000
    UNION ALL
    SELECT '', '', false, 0, 1
), begins AS MATERIALIZED (
    SELECT
        s.path, p.n, s.is_number,
        coalesce((t.x - s.least) * CASE WHEN s.is_number THEN size ELSE 1 END, 0) AS above
    FROM starts AS s, size, pages AS p LEFT JOIN page_numbers AS t ON t.n = p.n AND t.path = s.path
), positioned AS (
    SELECT c.click, p.path AS place, TRY_CAST(f.v AS BIGINT) AS named_place, coalesce(TRY_CAST(m.v AS BIGINT) - base, s.i) + 1 AS slot, c.page
    FROM clicks AS c
    JOIN chosen AS o ON true
    JOIN place_field AS p ON true
    JOIN flat AS f ON f.n = c.click AND f.path = p.path
    JOIN seen AS s ON s.n = c.page AND s.path = o.shown AND s.v = c.doc
    LEFT JOIN item_place ON true
    LEFT JOIN seen AS m ON m.n = c.page AND m.path = item_place.path AND m.i = s.i
), scores AS MATERIALIZED (
    SELECT
        b.path, b.is_number, p.place, place_base, count(*) AS clicks,
        sum(CAST(named_place - place_base + 1 = slot + above AS INTEGER)) AS over_pages,
        sum(CAST(named_place - place_base + 1 = slot AS INTEGER)) AS in_list
    FROM positioned AS p JOIN begins AS b ON b.n = p.page, (VALUES (0), (1)) AS v (place_base) GROUP BY ALL
), start AS MATERIALIZED (
    SELECT
        s.path AS start, s.is_number, s.least, size, c.place, c.place_base, c.clicks,
        over_pages >= .98 * clicks AS is_over_pages, greatest(over_pages, in_list) AS agreeing
    FROM starts AS s CROSS JOIN size LEFT JOIN scores AS c USING (path, is_number)
    ORDER BY
        coalesce(agreeing >= .98 * clicks, true) DESC,  -- clicks agree, where they say positions
        s.path <> '' AND s.values > 1 DESC, agreeing DESC, over_pages DESC, s.is_number, len(s.path), s.path, c.place,
        c.place_base DESC
    LIMIT 1
), several_lists AS (  -- with the same beginning
    SELECT count(*) AS of_ids, count(*) FILTER (lists > starts) AS several FROM (
        SELECT id, count(DISTINCT docs) AS lists, count(DISTINCT above) AS starts
        FROM (
            SELECT s.n, id, list(s.v ORDER BY i) AS docs FROM pages JOIN seen AS s USING (n) JOIN chosen ON path = shown
            GROUP BY ALL
        ) JOIN (
            SELECT n, above FROM begins JOIN start ON begins.path = start.start AND begins.is_number = start.is_number
        ) USING (n)
        WHERE NOT EXISTS (FROM item_place) GROUP BY id
    )
), found AS MATERIALIZED (
    SELECT
        o.list, o.shown, o.page_id, o.click_id, o.clicked, o.top, o.is_visit, k.path AS kind, q.path AS query,
        coalesce(q.is_address, false) AS is_address, t.path AS clock, u.path AS visit, s.*, i.path AS item_place,
        i.base AS item_base, coalesce(i.latest >= size, false) AS item_is_over_pages, click_kinds.those AS click_kinds,
        page_kinds.those AS page_kinds,
        CASE
            WHEN o.top < 0 THEN 'clicks say the place of what was clicked (' || substr(o.clicked, 3) || '), and not '
                || 'whether places count from 0 or from 1. Use --position-base 0 or --position-base 1.'
            WHEN agreeing < .98 * clicks THEN (clicks - agreeing) || ' of ' || clicks || ' clicks say another '
                || substr(s.place, 3) || ' than the place of their item in ' || substr(list, 3) || ', and no field of '
                || 'pages (offset, page, ...) tells where their lists begin. Log that, or the position of each item; '
                || 'or leave ' || substr(s.place, 3) || ' out of the log if it means something else.'
            WHEN several > .02 * of_ids AND NOT o.is_visit THEN several || ' of ' || of_ids || ' ids in ' || substr(page_id, 3)
                || ' have different lists, and no field tells where each begins. Log an id for each list that is '
                || 'shown, or where it begins (offset, page).'
        END AS fault,
        concat(
            'each record with ', o.list, ' shows a page, and each with ', o.clicked,
            ' (' || k.path || ' is ' || array_to_string(nullif(click_kinds.those[:3], []), ', ') || ')', CASE
                WHEN click_kinds.those = [] THEN ', of a ' || k.path
                    || ' that --click-where kind=NAME says,' ELSE '' END, ' clicks on it, as both name ', o.page_id, nullif(' or ' || o.click_id, ' or ' || o.page_id),
            CASE WHEN o.is_visit THEN ' (the last list there that showed it, up to 30 minutes before)' ELSE '' END,
            '; items are ', o.shown, ', the query is ' || q.path, CASE
                WHEN i.path IS NOT NULL THEN ', positions are ' || i.path
                WHEN s.start = '' THEN ', positions count up each list'
                ELSE ', positions count up each list, from ' || s.start || ' on'
            END || CASE WHEN s.is_number AND i.path IS NULL THEN ' (in pages of ' || size || ')' ELSE '' END
        ).replace('$.', '').replace('[*]', '[]').replace('"', '') AS sentence
    FROM chosen AS o CROSS JOIN start AS s CROSS JOIN click_kinds CROSS JOIN page_kinds CROSS JOIN several_lists
    LEFT JOIN kind AS k ON true LEFT JOIN query AS q ON true LEFT JOIN clock AS t ON true LEFT JOIN visit AS u ON true
    LEFT JOIN item_place AS i ON true
    WHERE NOT o.is_visit OR t.path IS NOT NULL
), said AS (
    SELECT sentence FROM found
)
-- rows:
, fields AS (
    SELECT
        n,
        max(v) FILTER (path = page_id AND coalesce(i, 0) = 0) AS page_id,
        max(v) FILTER (path = click_id AND coalesce(i, 0) = 0) AS click_id,
        max(v) FILTER (path = clicked) AS clicked,
        list(v ORDER BY i) FILTER (path = shown AND i IS NOT NULL) AS docs,
        list(i ORDER BY i) FILTER (path = shown AND i IS NOT NULL) AS slots,
        map_from_entries(list(DISTINCT (i, TRY_CAST(v AS BIGINT))) FILTER (path = item_place AND i IS NOT NULL)) AS places,
        regexp_replace(max(v) FILTER (path = kind), '[?#].*', '') AS kind,
        max(v) FILTER (path = query) AS query,
        max(v) FILTER (path = clock) AS clock,
        max(v) FILTER (path = visit) AS visit,
        TRY_CAST(max(v) FILTER (path = start) AS BIGINT) AS start,
        TRY_CAST(max(v) FILTER (path = place) AS BIGINT) AS place
    FROM leaves, found
    WHERE path IN (
        page_id, click_id, clicked, shown, item_place, found.kind, found.query, found.clock, found.visit, found.start,
        found.place
    )
    GROUP BY n
), long_ids AS (
    SELECT DISTINCT page_id AS id FROM fields WHERE len(docs) > 1 AND page_id IS NOT NULL
), firsts AS (
    SELECT page_id AS id, min(n) AS n FROM fields WHERE docs IS NOT NULL AND page_id IS NOT NULL GROUP BY page_id
), judged AS (
    SELECT
        f.n, f.docs, f.slots, f.places, f.clicked, f.page_id, f.click_id, f.visit, f.place,
        CASE WHEN found.fault IS NOT NULL THEN error(found.fault) ELSE f.kind END AS own,
        CASE WHEN is_address THEN nullif(trim(url_decode(replace(regexp_extract(
            f.query, '[?&](q|query|search|search_query|searchterm|s|keyword|text|term)=([^&#]+)', 2
        ), '+', ' '))), '') ELSE f.query END AS query,
        CASE WHEN TRY_CAST(f.clock AS DOUBLE) IS NULL THEN CAST(TRY_CAST(f.clock AS TIMESTAMPTZ) AS TIMESTAMP)
            ELSE make_timestamp(CAST(TRY_CAST(f.clock AS DOUBLE) * CASE
                WHEN TRY_CAST(f.clock AS DOUBLE) < 1e11 THEN 1e6 WHEN TRY_CAST(f.clock AS DOUBLE) < 1e14 THEN 1e3
                WHEN TRY_CAST(f.clock AS DOUBLE) < 1e17 THEN 1 ELSE 1e-3
            END AS BIGINT))
        END AS timestamp,
        coalesce((f.start - least) * CASE WHEN is_number THEN size ELSE 1 END, 0) AS above,
        found.query IS NOT NULL AS has_queries,
        CASE
            WHEN found.kind IS NOT NULL THEN coalesce(list_contains(click_kinds, f.kind), false)
            ELSE f.click_id IS NOT NULL AND f.clicked IS NOT NULL
                AND (f.docs IS NULL OR len(f.docs) = 1 AND (
                    f.click_id IN (FROM long_ids) OR f.query IS NULL AND found.query IS NOT NULL OR f.n > firsts.n
                ))
        END AS is_click,
        f.docs IS NOT NULL AND f.page_id IS NOT NULL AND coalesce(list_contains(page_kinds, f.kind), true) AS is_page,
        place_base, is_over_pages, item_base, item_is_over_pages, is_visit, top
    FROM fields AS f JOIN found ON true LEFT JOIN firsts ON firsts.id = f.page_id
), pages_of_all AS (
    SELECT *, CASE WHEN is_visit THEN concat_ws(' ', page_id, timestamp, query) ELSE page_id END AS page FROM judged
), shown_before AS (  -- of visits, whose clicks name no page; the last of several lists of one time is the last record
    SELECT
        page_id, page, timestamp, epoch_us(timestamp) * 9223372036854775808::HUGEINT + n AS instant, unnest(docs) AS doc
    FROM pages_of_all WHERE is_visit AND is_page AND NOT is_click
), places_of AS (  -- of pages whose clicks name no item
    SELECT page_id, arg_min(docs, n) AS docs FROM judged WHERE top IS NOT NULL AND is_page AND NOT is_click GROUP BY page_id
), joined AS (
    SELECT
        j.* EXCLUDE (clicked),
        CASE
            WHEN NOT j.is_visit THEN j.click_id
            WHEN s.timestamp >= j.timestamp - INTERVAL 30 MINUTE THEN s.page
            ELSE j.click_id || ' before this click'
        END AS on_page,
        CASE
            WHEN top IS NULL THEN clicked
            WHEN TRY_CAST(clicked AS BIGINT) >= top THEN places_of.docs[TRY_CAST(clicked AS BIGINT) - top + 1]
        END AS clicked,
        coalesce(TRY_CAST(clicked AS BIGINT) - top + 1, place - place_base + 1 + CASE WHEN is_over_pages THEN 0 ELSE above END)
            AS clicked_at
    FROM pages_of_all AS j
    ASOF LEFT JOIN shown_before AS s ON j.click_id = s.page_id AND j.clicked = s.doc
        AND (epoch_us(j.timestamp) + 1) * 9223372036854775808::HUGEINT > s.instant
    LEFT JOIN places_of ON places_of.page_id = j.click_id
), lists_without AS (
    SELECT page AS id FROM joined WHERE is_page AND NOT is_click AND has_queries GROUP BY id HAVING count(query) = 0
), kinds_of_rows AS (
    SELECT *, coalesce(getvariable('position_base'), 1) - 1 AS lower, CASE
        WHEN is_click AND click_id IS NULL THEN 'click outside of a page'
        WHEN is_click AND on_page IN (FROM lists_without) THEN 'click on a list without a query'
        WHEN is_click THEN 'click'
        WHEN is_page AND page IN (FROM lists_without) THEN 'list without a query'
        WHEN is_page THEN 'impression'
        ELSE coalesce(own, '')
    END AS kind
    FROM joined
)
SELECT
    kind, page, query, unnest(docs) AS doc,
    unnest(list_transform(slots, lambda s: coalesce(places[s] - item_base, s) + 1))
        + CASE WHEN item_is_over_pages THEN 0 ELSE above END + lower AS position,
    timestamp, visit
FROM kinds_of_rows WHERE kind = 'impression'
UNION ALL BY NAME
SELECT kind, on_page AS page, clicked AS doc, clicked_at + lower AS position, timestamp, visit
FROM kinds_of_rows WHERE kind <> 'impression'
UNION ALL BY NAME
SELECT '' AS kind FROM numbered ANTI JOIN fields USING (n)
