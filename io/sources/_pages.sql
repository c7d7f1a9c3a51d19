-- used: pages
-- outcome: blank lines
-- outcome: action lines of the bulk format
-- fatal: lines that are not in this format
-- fatal: lines of an unknown kind
-- fatal: lines without a time that can be read
-- outcome: events of other kinds
-- outcome: pages without an id
-- outcome: pages without a query
-- outcome: pages that showed nothing
-- outcome: pages whose list does not hold different ids
-- outcome: pages that were seen before
-- outcome: pages whose id has another query or list as well
--
-- Sources with a line for each page, with its documents, and for each click. `lines` has the columns
--
--   n, file, line     number of the line over all files, its file and its number there
--   kind, outcome     'page' or 'click', or else the reason why the line is not used
--   action            the source's name of the event, if it is reported
--   key               the page or session, within which clicks are joined
--   page              null for a click that is joined by `visit`
--   visit             key of the join for such a click
--   query, docs, first  query of a page, its documents from the top, and the position of the first one
--   doc               the clicked document
--   timestamp, user, session  additional columns of the log
-- include: _times.sql
CREATE TABLE parsed AS
    SELECT * EXCLUDE (outcome), coalesce(moment, 0) * 9223372036854775808::HUGEINT + n AS instant, CASE
        WHEN outcome IS NOT NULL THEN outcome
        WHEN kind = 'page' AND page IS NULL THEN 'pages without an id'
        WHEN kind = 'page' AND query IS NULL THEN 'pages without a query'
        WHEN kind = 'page' AND len(docs) = 0 THEN 'pages that showed nothing'
        WHEN kind = 'page' AND (docs IS NULL OR len(list_distinct(docs)) < len(docs))
            THEN 'pages whose list does not hold different ids'
        WHEN kind = 'click' AND key IS NULL THEN 'clicks without the id of a page or visit'
        WHEN kind = 'click' AND doc IS NULL THEN 'clicks without a document'
        WHEN moment IS NULL THEN 'lines without a time that can be read'
    END AS outcome
    FROM (  -- if nothing has a time, the order of lines is that of time
        SELECT *, CASE WHEN timed THEN moment_of(timestamp) ELSE 0 END AS moment
        FROM lines, (SELECT count(timestamp) > 0 AS timed FROM lines)
    );
CREATE TABLE pages AS
    SELECT p.*, CASE
        WHEN differ THEN 'pages whose id has another query or list as well'
        WHEN instant > earliest THEN 'pages that were seen before'
        ELSE 'pages'
    END AS result
    FROM parsed AS p JOIN (
        SELECT page, min(instant) AS earliest, min(content) < max(content) AS differ
        FROM (SELECT *, hash(struct_pack(query := query, first := first, docs := docs)) AS content FROM parsed)
        WHERE kind = 'page' AND outcome IS NULL GROUP BY page
    ) USING (page)
    WHERE kind = 'page' AND outcome IS NULL;
CREATE VIEW shown AS
    SELECT
        page, key, visit, instant, moment, NULL AS place, unnest(docs) AS doc,
        struct_pack(instant := instant, slot := generate_subscripts(docs, 1)) AS turn
    FROM pages WHERE result = 'pages';
CREATE VIEW used AS SELECT page FROM pages WHERE result = 'pages';
CREATE VIEW known AS SELECT page FROM parsed WHERE kind = 'page';
CREATE VIEW clicks AS
    SELECT instant AS n, outcome, page, visit, doc, key, instant, moment, NULL::BIGINT AS place, NULL AS said
    FROM parsed WHERE kind = 'click';
CREATE VIEW decided AS
    SELECT outcome, action, file, line FROM parsed WHERE outcome IS NOT NULL
    UNION ALL SELECT result, NULL, NULL, NULL FROM pages;
CREATE VIEW counts AS
    SELECT (SELECT count(*) FROM shown) AS rows, (SELECT count(*) FROM clicks) AS clicks;
-- include: _clicks.sql
CREATE VIEW made AS
    SELECT
        page, query, unnest(docs) AS doc, first - 1 + generate_subscripts(docs, 1) AS position,
        unnest(list_transform(docs, lambda x: CAST(list_contains(clicked, x) AS TINYINT))) AS click,
        timestamp, user, session AS visit
    FROM (
        SELECT p.*, coalesce(clicked, []) AS clicked
        FROM pages AS p LEFT JOIN (SELECT page, list(doc) AS clicked FROM first_clicks GROUP BY page) USING (page)
        WHERE result = 'pages' ORDER BY instant
    );
