-- title: pages with the list of what they showed, and clicks that name their page
-- options: --impression-where kind=impression --click-where kind=click --session page
-- then: _linked.sql
--
-- Trackers that send an event a page, with a list of what it showed, and an event a click, which repeats the id of the
-- page: Coveo's usage analytics (searchQueryUid), Constructor (result_id), Google's retail events (attributionToken),
-- Athos' beacon (responseId), and whatever a shop writes itself, in one file or several. Nothing is known by its name
-- alone: ids and items are the fields whose values link records.
SELECT to_json(log) AS e FROM log
