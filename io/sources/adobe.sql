-- title: Adobe Analytics
-- columns: post_visid_high post_visid_low visit_num hit_time_gmt
-- columns: visid_high visid_low visit_num hit_time_gmt
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
--
-- Adobe Analytics' data feed (hit_data; put the names of column_headers.tsv above it), columns with or without post_:
--   post_visid_high, post_visid_low, visit_num   the visit
--   hit_time_gmt        seconds since 1970
--   exclude_hit         above 0: the hit does not count
--   post_event_list     numbers of events: 2 is a product view; 1, 10 to 14 are orders, carts and checkouts
--   post_product_list   entries `category;product;quantity;price;events;eVar3=4|...`, with commas between them
--   post_evarN          what the site chose. Read here, as is usual: eVar1, what was searched for; eVar2, the number of
--                       the results page, from 1; eVar3, the slot on that page, of a hit or of an entry
--
-- A hit with products that is no product view shows them, in their slots, or else in their order. A product view with a
-- slot is a click; if none has one, every product view is. The position is the slot below those of the results pages
-- above, each of which has as many as the largest slot of the log. A page is what a visit shows for a query at a time.
WITH hits AS (
    SELECT
        coalesce(e->>'post_visid_high', e->>'visid_high', '') || '-' || coalesce(e->>'post_visid_low', e->>'visid_low', '')
            || ' ' || coalesce(e->>'visit_num', '') AS visit,
        make_timestamp(TRY_CAST(e->>'hit_time_gmt' AS BIGINT) * 1000000) AS timestamp,
        coalesce(TRY_CAST(e->>'exclude_hit' AS BIGINT), 0) > 0 AS is_excluded,
        string_split(coalesce(e->>'post_event_list', e->>'event_list', ''), ',') AS numbers,
        list_filter(
            string_split(coalesce(e->>'post_product_list', e->>'product_list', ''), ','),
            lambda x: trim(x, '; ') <> ''
        ) AS products,
        nullif(trim(coalesce(e->>'post_evar1', e->>'evar1', e->>'search_term')), '') AS query,
        TRY_CAST(coalesce(e->>'post_evar2', e->>'evar2', e->>'page_number') AS BIGINT) AS page,
        TRY_CAST(coalesce(e->>'post_evar3', e->>'evar3', e->>'slot') AS BIGINT) AS slot
    FROM (SELECT to_json(log) AS e FROM log)
), kinds AS (
    SELECT
        *,
        CASE
            WHEN is_excluded THEN 'excluded hit'
            WHEN len(products) = 0 THEN 'hit without products'
            WHEN list_has_any(numbers, ['1', '10', '11', '12', '13', '14', 'purchase', 'scAdd']) THEN 'order or cart'
            WHEN list_has_any(numbers, ['2', 'prodView']) THEN 'product view'
            ELSE 'impression'
        END AS kind
    FROM hits
), rows AS (
    SELECT
        * EXCLUDE (products, numbers, slot),
        generate_subscripts(shown, 1) AS place,
        string_split(unnest(shown), ';')[2] AS doc,
        coalesce(TRY_CAST(regexp_extract(unnest(shown), '(?i)evar3=([0-9]+)', 1) AS BIGINT), slot) AS slot
    FROM (SELECT *, CASE WHEN kind IN ('impression', 'product view') THEN products ELSE [NULL] END AS shown FROM kinds)
), placed AS (
    SELECT
        *,
        -- The slot of a hit is that of its only product.
        CASE
            WHEN kind <> 'impression' THEN slot
            WHEN count(DISTINCT slot) OVER (PARTITION BY visit, timestamp, page, query) < max(place) OVER (
                PARTITION BY visit, timestamp, page, query
            ) THEN place
            ELSE slot
        END AS in_page
    FROM rows
), sizes AS (
    SELECT
        max(in_page) - CASE WHEN min(in_page) = 0 THEN -1 ELSE 0 END AS size,
        coalesce(bool_or(kind = 'product view' AND slot IS NOT NULL), false) AS says_slots
    FROM placed
)
SELECT
    CASE
        WHEN kind = 'product view' AND (slot IS NOT NULL OR NOT says_slots) THEN 'click' ELSE kind
    END AS kind,
    visit, query, doc,
    (coalesce(page, 1) - 1) * size + in_page AS position,
    timestamp
FROM placed, sizes
