-- Lines of JSON, in `records` as `text`, with n (their order) and their place, as objects: alone, after the name of an
-- index and a tab, or as a hit of a search (`_source`).
CREATE MACRO text_of(x) AS  -- an id or a text; null where a value is none
    CASE
        WHEN json_type(x) IN ('VARCHAR', 'BIGINT', 'UBIGINT', 'DOUBLE') AND regexp_matches(x->>'$', '[^\s\v\p{Z}]')
            THEN x->>'$'
    END;
CREATE MACRO ids_of(items, ids) AS  -- those of all objects in a list; null where it is none, or one has no id
    CASE
        WHEN json_type(items) = 'ARRAY' AND len(ids) = json_array_length(items)
            THEN list_transform(ids, lambda x: text_of(x))
    END;
CREATE VIEW documents AS
    SELECT n, file, line, text, NOT coalesce(regexp_matches(text, '\S'), false) AS is_blank, CASE
        WHEN json_type(document) <> 'OBJECT' THEN NULL
        WHEN contains(text, '"_source"') AND json_type(document, '$._source') = 'OBJECT' THEN document->'$._source'
        ELSE document
    END AS document, CASE
        WHEN regexp_matches(text, '^\s*\{\s*"(?:index|create|update|delete)"\s*:\s*\{')
            THEN len(json_keys(document)) = 1
    END AS is_action_line
    FROM (SELECT *, TRY_CAST(regexp_replace(text, '^[^{]*\t\s*\{', '{') AS JSON) AS document FROM records);
