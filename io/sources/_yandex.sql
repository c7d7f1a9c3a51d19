-- Yandex's logs of the Relevance Prediction Challenge (2011) and of the Personalized Web Search Challenge (2013). Fields
-- between tabs, as in http://imat-relpred.yandex.ru/en/datasets:
--
--   SessionID TimePassed Q QueryID RegionID URLID ... URLID
--   SessionID TimePassed C URLID
--
-- and in https://www.kaggle.com/c/yandex-personalized-web-search-challenge/data (Logs format):
--
--   SessionID M Day UserID
--   SessionID TimePassed Q SERPID QueryID TermID,... URLID,DomainID ... URLID,DomainID
--   SessionID TimePassed C SERPID URLID
--
-- The clicks of test queries (T in place of Q) were kept back, so that these pages are not used. A page is a query action.
-- A click names its page, or belongs to the last one of the session with its URL.
CREATE VIEW lines AS
    WITH fields AS (
        SELECT *, string_split(regexp_replace(text, '[\r\n\t ]+$', ''), E'\t') AS f FROM records
    ), kinds AS (
        SELECT
            *, CASE
                WHEN NOT coalesce(regexp_matches(text, '\S'), false) THEN 'blank lines'
                WHEN len(f) = 4 AND f[2] = 'M' THEN 'events of other kinds'
                WHEN len(f) < 4 OR f[1] = '' OR NOT regexp_full_match(f[2], '\d+') THEN 'lines that are not in this format'
                WHEN f[3] = 'T' THEN 'events of other kinds'
                WHEN f[3] = 'Q' OR (f[3] = 'C' AND len(f) <= 5) THEN NULL
                ELSE 'lines that are not in this format'
            END AS outcome, coalesce(contains(f[7], ','), false) AS has_domains
        FROM fields
    )
    SELECT
        n, file, line, outcome, CASE WHEN f[2] = 'M' THEN 'M' ELSE f[3] END AS action,
        CASE WHEN outcome IS NULL THEN CASE f[3] WHEN 'Q' THEN 'page' ELSE 'click' END END AS kind,
        f[1] AS key, f[1] AS visit, f[1] AS session, f[2] AS timestamp, NULL::VARCHAR AS user,
        CASE
            WHEN f[3] = 'Q' THEN concat_ws(' ', f[1], CASE WHEN NOT has_domains THEN f[2] END, f[4])
            WHEN len(f) = 5 THEN f[1] || ' ' || f[4]
        END AS page,
        nullif(CASE WHEN has_domains THEN f[5] ELSE f[4] END, '') AS query,
        list_transform(
            CASE WHEN has_domains THEN list_transform(f[7:], lambda x: string_split(x, ',')[1]) ELSE f[6:] END,
            lambda x: nullif(x, '')
        ) AS docs,
        nullif(f[-1], '') AS doc, 1 AS first
    FROM kinds;
-- include: _pages.sql
