-- title: Snowplow
-- columns: event_id collector_tstamp app_id
-- columns: event_id collector_tstamp event_name
-- columns: event_id derived_tstamp domain_userid
-- columns: event_id derived_tstamp user_id
-- events: list_view list_click
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
-- then: _named_lists.sql
--
-- Snowplow's enriched events (atomic.events), with its e-commerce events, as warehouses and the SDKs for analytics
-- write them (Parquet with nested columns, or JSON lines); names end in the version of the schema, _1 or _1_0_2:
--   unstruct_event_com_snowplowanalytics_snowplow_ecommerce_snowplow_ecommerce_action_1
--       type: list_view shows the products of the event, list_click clicks on them; name: that of the list
--   contexts_com_snowplowanalytics_snowplow_ecommerce_product_1   a list of id, name, position (from 1), ...
--   unstruct_event_com_snowplowanalytics_snowplow_site_search_1   terms: what was searched for
--   contexts_com_snowplowanalytics_snowplow_web_page_1            id: the page view
--   domain_sessionid, domain_userid; user_id, where a server tracks; page_urlquery, derived_tstamp, collector_tstamp
--
-- The query is what was searched for on the page view, or the one in its address, or else the name of the list. A page
-- is what a page view (or session) shows for a query at one time. Events none of whose products has a position show
-- them in their order.
WITH events AS (
    SELECT to_json(log) AS e FROM log
), keys AS (
    SELECT
        list_filter(k, lambda x: x LIKE 'unstruct_event_%snowplow_ecommerce_action_1%')[1] AS action,
        list_filter(k, lambda x: x LIKE 'contexts_%snowplow_ecommerce_product_1%')[1] AS products,
        list_filter(k, lambda x: x LIKE 'unstruct_event_%site_search_1%')[1] AS search,
        list_filter(k, lambda x: x LIKE 'contexts_%web_page_1%')[1] AS page
    FROM (SELECT json_keys(e) AS k FROM events LIMIT 1)
), nested AS (
    SELECT
        e,
        list_transform(
            [action, products, search, page],
            lambda k: CASE json_type(json_extract(e, '$."' || k || '"'))
                WHEN 'VARCHAR' THEN CAST(json_extract_string(e, '$."' || k || '"') AS JSON)
                ELSE json_extract(e, '$."' || k || '"')
            END
        ) AS n
    FROM events, keys
), shown AS (
    SELECT
        coalesce(nullif(coalesce(n[4]->>'$[0].id', n[4]->>'$.id'), ''), e->>'domain_sessionid', e->>'domain_userid', e->>'user_id')
            AS visit,
        CAST(TRY_CAST(coalesce(e->>'derived_tstamp', e->>'collector_tstamp') AS TIMESTAMPTZ) AS TIMESTAMP) AS timestamp,
        n[1]->>'type' AS type,
        n[1]->>'name' AS list,
        coalesce(
            nullif(array_to_string(n[3]->>'$.terms[*]', ' '), ''),
            nullif(url_decode(replace(regexp_extract(
                '&' || (e->>'page_urlquery'), '&(q|query|search|search_query|s|keyword)=([^&#]+)', 2
            ), '+', ' ')), '')
        ) AS term,
        coalesce(e->>'event_name', e->>'event', '') AS name,
        coalesce(n[2]->'$[*]', []) AS products
    FROM nested
), searched AS (
    SELECT
        *,
        last_value(term IGNORE NULLS) OVER (PARTITION BY visit ORDER BY timestamp) AS last_term,
        CASE
            WHEN type IN ('list_view', 'list_click') AND len(products) = 0 THEN type || ' without products'
            WHEN type = 'list_view' THEN 'impression'
            WHEN type = 'list_click' THEN 'click'
            ELSE coalesce(type, name)
        END AS kind
    FROM shown
), rows AS (
    SELECT
        * EXCLUDE (products),
        unnest(CASE WHEN kind IN ('impression', 'click') THEN products ELSE [NULL] END) AS product,
        generate_subscripts(CASE WHEN kind IN ('impression', 'click') THEN products ELSE [NULL] END, 1) AS place,
        len(list_filter(products, lambda p: TRY_CAST(p->>'position' AS BIGINT) IS NOT NULL)) > 0 AS numbered
    FROM searched
)
SELECT
    kind,
    visit,
    coalesce(term, last_term) AS term,
    nullif(list, '') AS list,
    coalesce(product->>'id', product->>'name') AS doc,
    CASE WHEN numbered THEN TRY_CAST(product->>'position' AS BIGINT) WHEN kind = 'impression' THEN place END AS position,
    timestamp
FROM rows
