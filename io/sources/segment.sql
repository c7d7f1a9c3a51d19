-- title: Segment
-- columns: anonymousId messageId event properties
-- columns: anonymous_id event event_text original_timestamp
-- options: --impression-where kind=impression --click-where kind=click --session visit --page-time timestamp
-- then: _properties.sql
--
-- Segment's track calls, as its object stores hold them (a JSON object a line), or its warehouse (a table an event,
-- whose columns are the properties; name the files of all of them):
--   event         what was done; Segment's own names for shops are Products Searched (query), Product List Viewed
--                 (list_id, category, products), Product List Filtered (likewise) and Product Clicked (product_id, ...)
--   properties    products holds product_id, sku, name, price, position, ...; position is the place in the list
--   anonymousId   the browser; userId, the user, where that is not known
--   timestamp     when it was done, ISO 8601, UTC
-- Whose lists have no query of their own show what the visitor searched for last, unless they name a category or list.
SELECT
    coalesce(e->>'event_text', e->>'event', e->>'type') AS name,
    coalesce(e->>'anonymousId', e->>'anonymous_id', e->>'userId', e->>'user_id') AS visit,
    CAST(TRY_CAST(coalesce(
        e->>'timestamp', e->>'originalTimestamp', e->>'original_timestamp', e->>'receivedAt', e->>'received_at'
    ) AS TIMESTAMPTZ) AS TIMESTAMP) AS timestamp,
    CASE WHEN json_type(e->'properties') IN ('OBJECT', 'VARCHAR') THEN e->'properties' ELSE e END AS properties
FROM (SELECT to_json(log) AS e FROM log)
