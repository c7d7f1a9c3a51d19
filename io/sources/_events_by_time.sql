-- Results that a visit shows for a query, each less than a second after the one before, are a page: all of them have the
-- time of the first.
CREATE VIEW timed AS FROM events WHERE kind = 'impression' AND outcome IS NULL;
CREATE TABLE times AS
    SELECT visit, query, moment, last_value(CASE WHEN starts THEN time END IGNORE NULLS) OVER of_visit AS first
    FROM (
        SELECT *, coalesce(moment - lag(moment) OVER of_visit >= 1000000, true) AS starts
        FROM (SELECT visit, query, moment, arg_min(time, n) AS time FROM timed GROUP BY visit, query, moment)
        WINDOW of_visit AS (PARTITION BY visit, query ORDER BY moment)
    ) WINDOW of_visit AS (PARTITION BY visit, query ORDER BY moment);
CREATE VIEW paged AS
    SELECT * EXCLUDE (first) REPLACE (coalesce(first, time) AS time), CASE
        WHEN visit IS NOT NULL AND query IS NOT NULL
            THEN struct_pack(visit := visit, query := query, time := coalesce(first, time))
    END AS page
    FROM timed LEFT JOIN times USING (visit, query, moment);
CREATE VIEW clicks_of_pages AS
    SELECT *, CASE WHEN false THEN struct_pack(visit := visit, query := query, time := time) END AS page
    FROM events WHERE kind = 'click';
-- include: _events.sql
