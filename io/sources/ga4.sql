-- title: GA4's BigQuery export
-- columns: event_name event_timestamp event_params items
-- columns: event_name event_timestamp user_pseudo_id items
-- events: view_item_list view_search_results select_item
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
-- then: _named_lists.sql
--
-- Google Analytics 4, tables events_YYYYMMDD as BigQuery exports them (Parquet, or JSON with whole numbers as text):
--   event_name       STRING     view_item_list and view_search_results show their items; select_item clicks on one
--   event_timestamp  INTEGER    microseconds since 1970, UTC
--   user_pseudo_id   STRING     the browser or app
--   event_params     RECORD[]   key; value.string_value, int_value, float_value, double_value. Of these are used:
--                               ga_session_id, search_term, page_location
--   device           RECORD     category: desktop, mobile, tablet (--context device)
--   items            RECORD[]   item_id, item_name, item_list_id, item_list_name, item_list_index (STRING, as the site
--                               numbered it: from 0 or from 1, which Google leaves to the site: --position-base)
--
-- The query is the event's search_term, or the one in the address of the page, or that of another event of the visit
-- at the same address, or else the list. A page is what a visit (browser and ga_session_id) shows for a query at one
-- time; a click is on the last one before it that showed the item. An event none of whose items has an index shows
-- them in their order. `(not set)` is nothing.
WITH events AS (
    SELECT to_json(log) AS e FROM log
), params AS (
    SELECT
        e->>'event_name' AS name,
        e->>'user_pseudo_id' AS browser,
        e->>'$.device.category' AS device,
        make_timestamp(TRY_CAST(e->>'event_timestamp' AS BIGINT)) AS timestamp,
        -- Arrays of a Parquet file that BigQuery wrote lie in `list` and `element`.
        CASE
            WHEN json_type(e->'items') = 'OBJECT' THEN e->'$.items.list[*].element' ELSE e->'$.items[*]'
        END AS items,
        map_from_entries(list_distinct(list_transform(
            CASE
                WHEN json_type(e->'event_params') = 'OBJECT' THEN e->'$.event_params.list[*].element'
                ELSE e->'$.event_params[*]'
            END,
            lambda p: {'k': p->>'key', 'v': coalesce(p->>'$.value.string_value', p->>'$.value.int_value')}
        ))) AS param
    FROM events
), shown AS (
    SELECT
        CASE
            WHEN name NOT IN ('view_item_list', 'view_search_results', 'select_item') THEN name
            WHEN len(coalesce(items, [])) = 0 THEN name || ' without items'
            WHEN name = 'select_item' THEN 'click'
            ELSE 'impression'
        END AS kind,
        browser || coalesce(' ' || (param['ga_session_id']), '') AS visit,
        browser,
        device,
        timestamp,
        param['page_location'] AS address,
        coalesce(
            nullif(nullif(trim(param['search_term']), ''), '(not set)'),
            nullif(url_decode(replace(
                regexp_extract(param['page_location'], '[?&](q|query|search|search_query|s|keyword)=([^&#]+)', 2),
                '+', ' '
            )), '')
        ) AS term,
        CASE WHEN len(coalesce(items, [])) = 0 THEN [NULL] ELSE items END AS items
    FROM params
), searched AS (
    SELECT
        * EXCLUDE (term),
        coalesce(term, last_value(term IGNORE NULLS) OVER (PARTITION BY visit, address ORDER BY timestamp)) AS term
    FROM shown
), rows AS (
    SELECT
        * EXCLUDE (items),
        unnest(items) AS item,
        generate_subscripts(items, 1) AS place,
        len(list_filter(items, lambda i: TRY_CAST(i->>'item_list_index' AS BIGINT) IS NOT NULL)) > 0 AS numbered
    FROM searched
)
SELECT
    kind,
    visit,
    term,
    coalesce(
        nullif(nullif(item->>'item_list_name', ''), '(not set)'),
        nullif(nullif(item->>'item_list_id', ''), '(not set)')
    ) AS list,
    coalesce(nullif(nullif(item->>'item_id', ''), '(not set)'), item->>'item_name') AS doc,
    CASE WHEN numbered THEN TRY_CAST(item->>'item_list_index' AS BIGINT) WHEN kind = 'impression' THEN place END
        AS position,
    timestamp,
    browser AS user_pseudo_id,
    device
FROM rows
