-- used: impressions
-- outcome: rows of other events
-- fatal: rows that are impressions (--impression-where) and clicks (--click-where) at once
-- fatal: rows without a time that can be read (--page-time)
-- outcome: impressions that were seen before
--
-- Impressions, without repetitions, and clicks of a table of events. It reads
--
--   events           n, file, line, kind, outcome (null where other rows decide it), action, moment (microseconds), time,
--                    visit, query, doc, position, place (the position as a number), and the columns of the log
--   paged            impressions with their page
--   clicks_of_pages  clicks with their page; empty where clicks are joined by time
--
-- Rows without an id stay, and are rejected as invalid rows.
CREATE TABLE impressions AS
    SELECT p.*, CASE
        WHEN f.n IS NOT NULL OR page IS NULL OR query IS NULL OR doc IS NULL OR position IS NULL THEN 'impressions'
        ELSE 'impressions that were seen before'
    END AS result
    FROM paged AS p LEFT JOIN (SELECT min(n) AS n FROM paged GROUP BY page, query, doc, position) AS f USING (n);
CREATE VIEW shown AS
    SELECT page, doc, visit, visit AS key, n AS turn, moment, NULL AS place,
        coalesce(moment, 0) * 9223372036854775808::HUGEINT + n AS instant
    FROM impressions WHERE result = 'impressions';
CREATE VIEW used AS SELECT page FROM shown;
CREATE VIEW known AS SELECT page FROM shown;
CREATE VIEW clicks AS
    SELECT
        n, outcome, doc, visit, visit AS key, moment, place, NULL AS said,
        (moment + 1) * 9223372036854775808::HUGEINT - 1 AS instant,  -- after what was shown at that moment
        page
    FROM clicks_of_pages;
CREATE VIEW decided AS
    SELECT outcome, action, file, line FROM events WHERE outcome IS NOT NULL
    UNION ALL SELECT result, NULL, NULL, NULL FROM impressions;
CREATE VIEW counts AS
    SELECT
        (SELECT count(*) FROM events WHERE kind = 'impression') AS declared,
        (SELECT count(*) FROM events WHERE kind = 'click') AS clicks,
        count(*) AS shown, count(DISTINCT page) AS pages
    FROM impressions WHERE result = 'impressions';
-- include: _clicks.sql
