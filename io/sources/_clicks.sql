-- The join of clicks to impressions, which is the last step of every source with separate clicks. It reads
--
--   shown   impressions of used pages: page, doc, visit (key of clicks without a page), instant (distinct number in the
--           order of time), moment, key, turn (number in the order of the log), and place, the position that clicks
--           may contradict
--   clicks  n (number in the order of the log), outcome (null where impressions decide it), page, visit, doc, key,
--           instant, moment, place (the stated position) and said (the required place, null for any)
--   used    pages that are used
--   known   pages that are recorded, used or not
--   decided outcome, action, file and line of records that are no clicks, and of clicks that are not joined here
CREATE TABLE open_clicks AS SELECT * EXCLUDE (outcome) FROM clicks WHERE outcome IS NULL;
CREATE TABLE clicked AS
    SELECT DISTINCT page, doc, place FROM shown SEMI JOIN (FROM open_clicks WHERE page IS NOT NULL) USING (page, doc);
CREATE TABLE judged AS
    SELECT
        c.n, c.page, c.doc, c.key, c.place,
        CASE
            WHEN s.page IS NOT NULL AND s.place <> c.said
                THEN 'clicks whose ordinal says another position than the impression'
            WHEN s.page IS NOT NULL THEN NULL
            WHEN c.page IN (FROM used) THEN 'clicks on a document that the page did not show'
            WHEN c.page IN (FROM known) THEN 'clicks on a page that is not used'
            ELSE 'clicks on a page that was not recorded'
        END AS outcome
    FROM open_clicks AS c LEFT JOIN clicked AS s ON c.page = s.page AND c.doc = s.doc
    WHERE c.page IS NOT NULL
    UNION ALL
    SELECT
        c.n, s.page, c.doc, c.key, c.place,
        CASE
            WHEN s.instant IS NULL THEN 'clicks on a document that the visit had not shown before'
            WHEN c.moment - s.moment > getvariable('longest')
                THEN 'clicks longer after the impression than --click-window'
        END AS outcome
    FROM (FROM open_clicks WHERE page IS NULL) AS c
    ASOF LEFT JOIN (
        SELECT page, visit, doc, instant, moment
        FROM shown SEMI JOIN (FROM open_clicks WHERE page IS NULL) USING (visit, doc) WHERE page IS NOT NULL
    ) AS s ON c.visit = s.visit AND c.doc = s.doc AND c.instant >= s.instant;
CREATE TABLE first_clicks AS SELECT page, doc, min(n) AS n FROM judged WHERE outcome IS NULL GROUP BY page, doc;
CREATE TABLE resolved AS
    SELECT j.* EXCLUDE (outcome), coalesce(
        j.outcome, CASE WHEN f.n IS NULL THEN 'clicks that were seen before' ELSE 'clicks' END
    ) AS outcome
    FROM judged AS j LEFT JOIN first_clicks AS f USING (n);
CREATE VIEW click_outcomes AS
    FROM resolved
    UNION ALL BY NAME
    SELECT n, page, doc, key, place, outcome FROM clicks WHERE outcome IS NOT NULL;
CREATE VIEW outcomes AS FROM decided UNION ALL SELECT outcome, NULL, NULL, NULL FROM resolved;
