-- A time in microseconds: text is read as a time (ISO 8601, UTC without a zone) or as a number; a number counts seconds,
-- or whatever smaller unit makes it a time of our days.
CREATE MACRO moment_of_number(x) AS
    CASE
        WHEN x BETWEEN 19800101000000 AND 21000101000000
            THEN epoch_us(try_strptime(CAST(CAST(x AS BIGINT) AS VARCHAR), '%Y%m%d%H%M%S'))
        ELSE TRY_CAST(trunc(x * CASE
            WHEN abs(x) >= 1e17 THEN 1e-3 WHEN abs(x) >= 1e14 THEN 1 WHEN abs(x) >= 1e11 THEN 1e3 ELSE 1e6
        END) AS BIGINT)
    END;
CREATE MACRO moment_of(x) AS
    coalesce(
        moment_of_number(TRY_CAST(x AS DOUBLE)),
        epoch_us(TRY_CAST(CASE
            WHEN regexp_full_match(
                upper(trim(x)), '\d{4}-\d\d?-\d\d?([ T]\d\d?:\d\d?(:\d\d?(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?'
            ) THEN upper(trim(x))
        END AS TIMESTAMPTZ))
    );
