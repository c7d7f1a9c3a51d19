CREATE VIEW paged AS SELECT *, visit AS page FROM events WHERE kind = 'impression' AND outcome IS NULL;
CREATE VIEW clicks_of_pages AS SELECT *, visit AS page FROM events WHERE kind = 'click';
-- include: _events.sql
