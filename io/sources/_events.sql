-- used: impressions
-- outcome: rows of other events
-- fatal: rows that are impressions (--impression-where) and clicks (--click-where) at once
-- fatal: rows without a time that can be read (--page-time)
-- outcome: impressions that were seen before
--
-- A table of events: its impressions, each once, and its clicks. `events` holds a row for each: n, file and line (its
-- place), kind, outcome (null where other rows decide it), action, moment (microseconds), time, visit, query, doc,
-- position, place (the position as a number), and the columns of the log; `paged` the impressions with
-- their page, and `clicks_of_pages` the clicks, with none where they are joined by time.
-- Rows without an id are for the rules of rows to judge.
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
