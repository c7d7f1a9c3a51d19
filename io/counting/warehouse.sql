-- Steps of the query that counts a table in its warehouse, by name. warehouse.py joins those that a request needs, and
-- fills in the values in braces. Names of columns are unique across steps, as some dialects take an alias for a column of
-- the same name.

-- log_rows: the columns of the table
SELECT {columns} FROM posbias_table

-- marked: rows with the code of their fault
SELECT log_rows.*, {marks} FROM log_rows

-- placed: the dense rank of each row on its page, if cells have columns other than the position
SELECT marked.*, DENSE_RANK() OVER (PARTITION BY {sessions}, row_fault ORDER BY r_position, {further}) AS r_place
FROM marked

-- pages: counts of the good rows of each page
SELECT
    {ids_of_page},
    MAX(row_fault) AS worst,
    COUNT(CASE WHEN row_fault = 0 THEN 1 END) AS page_rows,
    SUM(CASE WHEN row_fault = 0 THEN r_click END) AS page_clicks,
    MAX(CASE WHEN row_fault = 0 THEN 2 * CAST({place} AS BIGINT) + r_click END) AS last_row,
    MIN(CASE WHEN row_fault = 0 THEN r_query END) AS least_query,
    MAX(CASE WHEN row_fault = 0 THEN r_query END) AS largest_query,
    COUNT(DISTINCT CASE WHEN row_fault = 0 THEN r_doc END) AS docs,
    COUNT(DISTINCT CASE WHEN row_fault = 0 THEN {place} END) AS places
FROM {source} WHERE {is_known} GROUP BY {sessions}

-- page_marked: the sessions that cannot be one results page, by the rules of `core.log.pages`
SELECT
    {of_page}, page_rows, page_clicks, last_row - 2 * FLOOR(last_row / 2.0) AS last_clicked, {page_fault} AS page_fault
FROM pages

-- faulty
SELECT {of_page}, page_fault FROM page_marked WHERE page_fault > 0

-- judged: rows with their own fault or that of their page
SELECT marked.*, CASE WHEN row_fault > 0 THEN row_fault ELSE COALESCE(page_fault, 0) END AS fault
FROM marked LEFT JOIN faulty ON {same_page}

-- ends: `PageEnds` of valid pages
SELECT
    SUM(CASE WHEN page_clicks > 0 THEN 1 ELSE 0 END) AS e_pages,
    SUM(CASE WHEN page_clicks = 0 THEN 1 ELSE 0 END) AS e_without,
    SUM(last_clicked) AS e_ended,
    SUM(CASE WHEN page_clicks > 0 THEN page_rows - 1 ELSE 0 END) AS e_above,
    SUM(page_clicks - last_clicked) AS e_clicks
FROM page_marked WHERE page_fault IN (0, {faulty_row}) AND page_rows > 1

-- browsed: the last click above each row
SELECT
    {source}.*,
    COALESCE(MAX(CASE WHEN r_click = 1 THEN r_position ELSE 0 END) OVER (
        PARTITION BY {within_page} ORDER BY r_position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) AS r_previous
FROM {source}

-- keyed: the keys of the statistics, null for rejected rows
SELECT {keys_of_rows}, {fault} AS code, CASE WHEN r_click = 1 THEN 1 ELSE 0 END AS one_click FROM {source}

-- counted: impressions and clicks by key; rejected rows by fault
SELECT {keys}, code, COUNT(*) AS shown, SUM(one_click) AS clicked FROM keyed GROUP BY {keys}, code

-- weighed: counts with the impressions of their query
SELECT counted.*, SUM(shown) OVER (PARTITION BY c_query, code) AS of_query FROM counted

-- linked: counts with the clicks of their pair, and the least and largest cell of the pair
SELECT {source}.*, SUM({clicked}) {of_pair} AS of_pair, {ends} FROM {source}

-- parted: counts with 1 if their pair links cells: it was shown in two of them and clicked
SELECT linked.*, CASE WHEN {code} = 0 AND of_pair > 0 AND ({moves}) THEN 1 ELSE 0 END AS links FROM linked

-- numbered
SELECT parted.*, {ranks} FROM parted

-- rows_again: counts with new keys
SELECT {new_keys}, {new_code} AS {prefix}_code, {shown} AS {prefix}_each, {clicked} AS {prefix}_each_clicked
FROM {source}

-- counted_again
SELECT {keys}, {prefix}_code, SUM({prefix}_each) AS {prefix}_shown, SUM({prefix}_each_clicked) AS {prefix}_clicked
FROM {prefix}_rows GROUP BY {keys}, {prefix}_code

-- whole: numbers of all rows and clicks of the table, to validate the result
SELECT COUNT(*) AS w_rows, SUM(CASE WHEN r_click = 1 THEN 1 ELSE 0 END) AS w_clicks FROM log_rows

-- added_up: sums over all rows of the result
SELECT COALESCE(w_rows, 0) AS a_rows, COALESCE(w_clicks, 0) AS a_clicks FROM whole

-- added_up_with_pages
SELECT
    COALESCE(w_rows, 0) + COALESCE(e_pages, 0) + COALESCE(e_above, 0) + COALESCE(e_without, 0) AS a_rows,
    COALESCE(w_clicks, 0) + COALESCE(e_ended, 0) + COALESCE(e_clicks, 0) + COALESCE(e_without, 0) AS a_clicks
FROM whole CROSS JOIN ends

-- result: the counts
SELECT
    {named}, {code} AS "rejected", CAST({shown} AS BIGINT) AS "impressions", CAST({clicked} AS BIGINT) AS "clicks",
    CAST(NULL AS TEXT) AS "about"
FROM {source}

-- result_of_pages: where pages end
SELECT {nothing}, {with_click}, CAST(COALESCE(e_pages, 0) AS BIGINT), CAST(COALESCE(e_ended, 0) AS BIGINT), NULL FROM ends
UNION ALL
SELECT {nothing}, {above_last}, CAST(COALESCE(e_above, 0) AS BIGINT), CAST(COALESCE(e_clicks, 0) AS BIGINT), NULL FROM ends
UNION ALL
SELECT {nothing}, {without_click}, CAST(COALESCE(e_without, 0) AS BIGINT), CAST(COALESCE(e_without, 0) AS BIGINT), NULL
FROM ends

-- result_of_all
SELECT {nothing}, {description}, CAST(a_rows AS BIGINT), CAST(a_clicks AS BIGINT), {about} FROM added_up
