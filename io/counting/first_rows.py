"""Quantities of the first rows of a log, for the table of faults: rounded ids, sorted pages, deciding columns."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import NormalDist

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.check import CLIENT, FEWEST_CLIENTS, Clients, robots_among
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.odd_days import positions_in_words
from posbias.core.counts.order import order_of_rows
from posbias.core.counts.sufficient_statistics import SufficientStatistics, compress_part, merge_parts
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.fit.periods import feedback_by_rows
from posbias.core.log.first_rows import effect_of_missing_rows, page_level_columns, page_order, relevance_score
from posbias.core.log.impressions import REJECTED, RowRejection, may_be_key
from posbias.core.log.pages import ENDS, FIRST, ShiftedPages, find_shifted_pages, mark_repeats
from posbias.core.models import get_model
from posbias.core.roles import CLIENTS, VISITS, plain_name, words_in
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RESERVED, SESSION
from posbias.core.shapes.linear import fit_product
from posbias.io.engines.engine import ReadLog
from posbias.io.forms.recognition import option
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.faults import Quantity, rounded_id
from posbias.io.log.lists import Finding
from posbias.io.log.rejections import why_rejected
from posbias.io.log.scan import reading
from posbias.io.log.sql import sql_counted_from, sql_name, sql_of_first_pages, sql_of_places, sql_text, sql_where
from posbias.io.log.times import free_columns

_MOST_COLUMNS = 40  # most columns without a role to analyse, in the order of the log
_FEWEST_CLIENT_ROWS = 1000  # fewest rows to detect robots
_MOST_NAMED_CLIENTS = 3  # in a sentence
_ROBOT_SHARE = 0.005  # largest share of robots among the clients: more clients that stand out may be people
_ROWS_OF_ORDER = 1 << 15  # most rows to analyse the order of documents
_ROWS_OF_PAGES = 1 << 17  # most rows to find clicks joined to several pages, and effects of missing rows
_FEWEST_PAGES = 100  # fewest pages to analyse the order of documents
_DEEPEST = 50  # last position at which effects of a column are estimated
_BELOW = why_rejected(RowRejection.POSITION_BELOW_BASE)
_CODES_OF_BASES = (0, int(RowRejection.POSITION_BELOW_BASE))  # `rejected` of rows that show where pages start
_OTHER, _USUAL = "posbias_other_base", "posbias_usual_base"
_MOST_VALUES_OF_BASES = 400  # most values of a column that separates bases: versions of a client, or days
_MOST_LISTED = 2  # most values of such a column that are listed one by one, not as a range
_MIXED = 0.02  # largest share of the other base's pages that such a column may miss: changes during a day
_OWN = 2.0  # least movement of a user's own clicked results, relative to the movement for all users
_JOINED, _FEWEST_JOINED = 0.97, 50  # least share and number of a key's documents with clicks on all their pages
_NO_QUERY = [
    *("", "-", "\\n", "n/a", "nan", "none", "null", "undefined", "unknown"),
    *("(none)", "(not provided)", "(not set)", "(other)"),  # of Google Analytics
]
"""What exports write, in lower case, where there is no query; all but the empty text may also be searched for."""
_NOT_SEARCHED_FOR = 0.01  # least share of the rows of such a word
_FALSE = 0.001  # probability to name a column if no column has an effect


@dataclass(frozen=True)
class FirstRows:
    """The first accepted rows of a log."""

    rows: pl.DataFrame  # canonical impressions
    columns: tuple[str, ...]  # further columns of `rows`, without a role
    clients: Clients | None  # None if no column is named like a user's, or too few rows have a value there
    bases: Mapping[str, Quantity] = field(default_factory=dict[str, Quantity])  # see `_base_quantities`


def read_first_rows(read: ReadLog, most: int, sample: pl.DataFrame | None) -> FirstRows | None:
    """Read the first rows again, with columns that the engine does not retain.

    Args:
        read: the log.
        most: maximum number of rows.
        sample: sample of pages, used instead if the log has no further columns, or comes from raw files or sums.

    Returns:
        None if the sample would be used and there is none.
    """
    log = read.log
    parts_of_session = log.roles.session if len(log.roles.session) > 1 else ()
    names = [*log.roles.cluster, *_free_columns(log), *parts_of_session]
    columns = tuple(name for name in dict.fromkeys(names) if name not in RESERVED)[:_MOST_COLUMNS]
    sample_suffices = sample is not None and not columns and _BELOW not in read.rejected
    if log.raw is not None or log.roles.impressions is not None or sample_suffices:
        return None if sample is None else FirstRows(sample, (), None, _base_quantities(sample, (), log))
    counted = _read_first_rows(log, columns, most)
    rows = good_rows(counted.lazy())
    if log.docs_once:
        rows = good_rows(mark_repeats(rows, clicks_above_matter=False, cell=log.roles.cell))
    rows = rows.collect()
    return FirstRows(rows, columns, _clients(rows, columns, log), _base_quantities(counted, columns, log))


def _read_first_rows(log: Log, columns: Sequence[str], most: int) -> pl.DataFrame:
    """Read the first rows with further columns, including rows whose position is below the base."""
    impressions = replace(log, roles=replace(log.roles, cluster=tuple(columns))).impressions
    with reading([*log.sources, *log.click_sources]):
        schema = impressions.collect_schema()
        names = (SESSION, QUERY, DOC, POSITION, CLICK, PERIOD, REJECTED, *log.roles.cell, *columns)
        present = [name for name in dict.fromkeys(names) if name in schema]
        rows = impressions.select(present).filter(pl.col(REJECTED).is_in(_CODES_OF_BASES)).head(most)
        return rows.collect(engine="streaming")


def _base_quantities(rows: pl.DataFrame, columns: Sequence[str], log: Log) -> dict[str, Quantity]:
    """Quantities of pages whose positions start at another base than most, and the column or days that separate them.

    Args:
        rows: canonical impressions, including rows whose position is below the base.
        columns: further columns of `rows`.
        log: the log.
    """
    shifted, time = find_shifted_pages(rows, log.roles.cell), log.roles.timestamp
    if shifted is None:
        return {}
    keys = {name: (name, f"CAST({sql_name(name)} AS VARCHAR)") for name in columns}
    if PERIOD in rows.columns and time is not None:
        rows = rows.with_columns(pl.col(PERIOD).cast(pl.Date))
        keys |= {PERIOD: (time, f"CAST({sql_name(time)} AS DATE)")}
    pages = rows.group_by(SESSION).agg(ENDS[0], *(pl.col(name).cast(pl.String).first() for name in keys))
    pages = pages.filter(pl.col(FIRST).is_in((shifted.span[0], shifted.usual[0])))
    is_other = pl.col(FIRST) == shifted.span[0]
    for name, (column, key) in keys.items():
        counts = pages.group_by(name).agg(is_other.sum().alias(_OTHER), (~is_other).sum().alias(_USUAL)).sort(name)
        others, known = counts.filter(pl.col(_OTHER) > pl.col(_USUAL))[name].to_list(), counts[name].to_list()
        missed = counts.select(pl.min_horizontal(_OTHER, _USUAL).sum()).item()
        if None in others or len(known) > _MOST_VALUES_OF_BASES or missed > _MIXED * shifted.pages:
            continue
        texts, at = [sql_text(value) for value in others], known.index(others[0])
        which, condition = f"{column} {', '.join(texts)}", f"{key} IN ({', '.join(texts)})"
        if len(others) > _MOST_LISTED and others == known[at : at + len(others)]:
            which, condition = f"{column} {texts[0]} to {texts[-1]}", f"{key} BETWEEN {texts[0]} AND {texts[-1]}"
        own = None if log.raw_sources or log.request.query or log.nesting or log.roles.page else log.roles.position
        how = sql_counted_from(own, shifted.usual[0] - shifted.span[0], condition) if own else ""
        above = f"; if something stands above the results there, such as an advert, use --cell {column} instead"
        apart = {"pages_told_apart": which, "from_one_base": (how and f": {how}") + above * (name != PERIOD)}
        return base_quantities(shifted, log) | apart
    return base_quantities(shifted, log)


def base_quantities(shifted: ShiftedPages, log: Log) -> dict[str, Quantity]:
    """Quantities of shifted pages: their number, and first and last positions, as the log numbers positions."""
    base = log.request.rules.position_base - 1 if log.raw is None else 0
    places = ("shifted_first", "shifted_last", "usual_first", "usual_last")
    own = [place + base for place in (*shifted.span, *shifted.usual)]
    return {"shifted_pages": shifted.pages, "pages_of_several_rows": shifted.of, **dict(zip(places, own, strict=True))}


def _free_columns(log: Log) -> list[str]:
    """Columns without a role that may be keys, other than times."""
    types = {name: log.flat_schema[name] for name in free_columns(log) if name in log.flat_schema}
    return [name for name, dtype in types.items() if may_be_key(dtype) and not dtype.is_temporal()]


def _clients(rows: pl.DataFrame, names: Sequence[str], log: Log) -> Clients | None:
    """Summarise clients by the user column with most values, or else the visit column; None if there are too few."""
    plain = {name: plain_name(name) for name in names}
    columns = [name for name in names if plain[name] in CLIENTS] or [name for name in names if plain[name] in VISITS]
    if not columns:
        return None
    column = max(columns, key=lambda name: rows[name].n_unique())
    shown, clicked = pl.len().cast(pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
    counts = rows.drop_nulls(column).group_by(pl.col(column).alias(CLIENT), POSITION).agg(shown, clicked)
    sizes = counts.group_by(CLIENT).agg(pl.col(IMPRESSIONS).sum())[IMPRESSIONS].to_list()
    if sum(sizes) < _FEWEST_CLIENT_ROWS or len(sizes) < FEWEST_CLIENTS:
        return None
    can_query = log.can_be_queried
    return Clients(column, len(sizes), sum(sizes), max(sizes) / sum(sizes), robots_among(counts), can_query)


def first_row_quantities(first: FirstRows, log: Log) -> dict[str, Quantity]:
    """Quantities of clients, ids, the order of documents on pages, and the column that affects relevance most."""
    rows = first.rows
    if not rows.height:
        return {}
    quantities: dict[str, Quantity] = {
        "rows_looked_at": rows.height,
        **rounded_id(rows, log),
        **_order_quantities(rows),
        **first.bases,
    }
    if rows[QUERY].dtype == pl.String and not log.roles.no_query and log.roles.query:
        # Pages without a search share the empty query, or the word that stands for it.
        column, can_query = log.roles.query[0], log.can_be_queried
        texts = rows[QUERY].str.strip_chars()
        missing = texts.filter(texts.str.to_lowercase().is_in(_NO_QUERY)).value_counts().sort(QUERY)
        held = [text for text, count in missing.iter_rows() if not text or count >= _NOT_SEARCHED_FOR * rows.height]
        condition = f"trim({sql_name(column)}) NOT IN ({', '.join(map(sql_text, held))})"
        how = f": {sql_where(condition)}" if can_query else " of the files"
        empty = texts.filter(texts.is_in(held)).len() / rows.height
        words = "empty" if held == [""] else " or ".join(map(sql_text, held))
        quantities |= {"empty_queries": empty, "query_column": column, "no_query": words, "without_empty": how}
    if first.clients is not None:
        quantities |= client_quantities(first.clients) | _returning_user_quantities(rows, first.clients, log)
    quantities |= _copied_click_quantities(rows, first.columns, log.roles.session)
    quantities |= _gap_quantities(rows, log)
    return quantities | _deciding_column(rows, first.columns)


def client_quantities(clients: Clients) -> dict[str, Quantity]:
    """Quantities of the largest client, and of clients that click like robots."""
    quantities: dict[str, Quantity] = {
        "client_column": clients.column,
        "largest_client": clients.share,
        "rows_of_clients": clients.rows,
    }
    robots = clients.robots
    if robots is None:
        return quantities
    names = ", ".join(map(sql_text, robots.names[:_MOST_NAMED_CLIENTS]))
    names += ", ..." if len(robots.names) > _MOST_NAMED_CLIENTS else ""
    how = sql_where(f"({sql_name(clients.column)} IN ({names})) IS NOT TRUE")
    return quantities | {
        "clients": clients.number,
        "few_clients": max(_ROBOT_SHARE * clients.number, 1),
        "robots": len(robots.names),
        "robot_names": names,
        "all_robots": ", ".join(robots.names),
        "robot_impressions": robots.impressions,
        "robot_clicks": robots.clicks,
        "robot_times": robots.times,
        "without_robots": f": {how}" if clients.can_query else " of the files",
    }


def _returning_user_quantities(rows: pl.DataFrame, clients: Clients, log: Log) -> dict[str, Quantity]:
    """Quantities of results that move for the user who clicked them, more than for all users; empty if they do not.

    The test of feedback is made within (query, user), by times or the order of rows. Theta is compared between all
    pages and the first page of each (query, user), on which nothing has moved yet.
    """
    user, plan, roles = clients.column, StatisticsPlan(get_model("pbm")), log.roles
    known = rows.drop_nulls(user)
    known = known.sort(PERIOD, maintain_order=True) if PERIOD in known.columns else known
    by_user = known.with_columns(pl.struct(QUERY, user).rank("dense").alias(QUERY))
    own = feedback_by_rows(order_of_rows([by_user.lazy()], plan))
    if own is None or not own.rejected:
        return {}
    overall = feedback_by_rows(order_of_rows([known.lazy()], plan))
    if overall is not None and abs(own.move) < _OWN * abs(overall.move):
        return {}
    change = None
    if SESSION in known.columns:
        first = known.filter(pl.col(SESSION) == pl.col(SESSION).first().over(QUERY, user))
        both = (
            _theta_by_position(known)
            .join(_theta_by_position(first), on=POSITION, suffix="_first")
            .filter(pl.col(POSITION) > 1)
            .drop_nans()
        )
        ratio = (both["theta"] / both["theta_first"]).log().to_numpy()
        change = float(np.expm1(abs(ratio.mean()))) if both.height else None
    can_query = clients.can_query and roles.timestamp is not None and len(roles.session) == 1
    how = f": {sql_of_first_pages(roles.session[0], [user, *roles.query], roles.timestamp or '')}" if can_query else ""
    moves = {"own_move": abs(own.move), "own_rises": own.move > 0, "own_change": change}
    return {"moved_for_user": user, "first_pages": how, **moves}


def _copied_click_quantities(rows: pl.DataFrame, columns: Sequence[str], session: Sequence[str]) -> dict[str, Quantity]:
    """Find the key by which a click was joined to all pages that share it: a document has a click on all or on none.

    Keys are (query, document), (client, document) and (client, query, document), within a day and in all, where clients
    are users, visits and parts of the id of a page. Documents at one position are left out: copies of whole pages agree
    there, and do not bias propensities.
    """
    clients = [name for name in columns if plain_name(name) in CLIENTS | VISITS or name in session]
    keys = [[QUERY, DOC], *([name, DOC] for name in clients), *([name, QUERY, DOC] for name in clients)]
    days: list[list[pl.Expr]] = [[], [pl.col(PERIOD).cast(pl.Date)]] if PERIOD in rows.columns else [[]]
    counts = pl.len().alias("shown"), pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
    moved = (pl.col(POSITION).min() < pl.col(POSITION).max()).alias("moved")
    most, found, rows = 0, dict[str, Quantity](), rows.head(_ROWS_OF_PAGES)
    for key, day in product(keys, days):
        documents = rows.drop_nulls(key).group_by(*key, *day).agg(*counts, moved)
        clicked = documents.filter("moved", pl.col(CLICKS) > 0)
        joined = clicked.filter(pl.col(CLICKS) == pl.col("shown"))
        copies = int(joined[CLICKS].sum()) - joined.height
        if joined.height < max(_JOINED * clicked.height, _FEWEST_JOINED) or copies <= most:
            continue
        most, names = copies, [*(name for name in key if name != DOC), *(["day"] * len(day))]
        found = {
            "click_key": " and ".join(names),
            "joined_by": f"{', '.join(names)} and document",
            "rows_of_copies": rows.height,
            "documents_of_key": clicked.height,
            "joined_documents": joined.height / clicked.height,
            "copied_clicks": copies / int(rows[CLICK].sum()),
        }
    return found


def _gap_quantities(rows: pl.DataFrame, log: Log) -> dict[str, Quantity]:
    """Quantities of the effect that positions missing on a page have on the rows below."""
    effect = (
        effect_of_missing_rows(rows.head(_ROWS_OF_PAGES)) if SESSION in rows.columns and not log.roles.cell else None
    )
    if effect is None:
        return {}
    score, factor, missing = effect
    position, can_query = log.roles.position, log.raw is None and log.can_be_queried
    how = ""
    if position is not None and can_query and not log.nesting:
        how = f": {sql_of_places(log.roles.session, position, log.request.rules.position_base)}"
    return {
        "missing_score": score,
        "missing_factor": factor,
        "missing_change": factor**missing - 1,
        "numbered_as_shown": how,
    }


def _order_quantities(rows: pl.DataFrame) -> dict[str, Quantity]:
    """Shares of pages whose documents are sorted by id, or by click; empty if there are too few pages."""
    order = page_order(rows.head(_ROWS_OF_ORDER)) if SESSION in rows.columns else None
    if order is None or order["pages"] < _FEWEST_PAGES:
        return {}
    return {
        "pages_of_four": order["pages"],
        "ascending_share": order["ascending"] / order["pages"],
        "descending_share": order["descending"] / order["pages"],
        "pages_partly_clicked": order["with_click"],
        "clicked_first_share": order["clicked_first"] / max(order["with_click"], 1),
        "clicked_first_several": order["several_clicks"],
    }


def _deciding_column(rows: pl.DataFrame, columns: Sequence[str]) -> dict[str, Quantity]:
    """Quantities of the column that affects relevance most, by `relevance_score`; empty if no score is significant."""
    rows = rows.filter(pl.col(POSITION) <= _DEEPEST)
    names = page_level_columns(rows, columns)
    scores = [(score, name) for name in names if (score := relevance_score(rows, name)) is not None]
    score, name = max(scores, default=(-np.inf, ""))
    if score <= NormalDist().inv_cdf(1 - _FALSE / max(len(scores), 1)):
        return {}
    by_value = rows.with_columns(pl.struct(QUERY, name).rank("dense").alias(QUERY))
    both = _theta_by_position(rows).join(_theta_by_position(by_value), on=POSITION, suffix="_apart").drop_nans()
    if not both.height:
        return {}
    changes = (both["theta"] / both["theta_apart"]).log().abs()
    position, theta, theta_apart = both.row(int(changes.arg_max() or 0))
    return {
        "deciding_column": name,
        "keep_apart": shlex.join(("--stratify", name)),
        "deciding_score": score,
        "deciding_change": float(np.expm1(changes.to_numpy().max())),
        "deciding_position": position,
        "deciding_without": theta,
        "deciding_apart": theta_apart,
    }


_PAGE_WORDS = {
    *("ad", "ads", "advert", "adverts", "advertisement", "banner", "block", "answer", "ai", "overview", "snippet"),
    *("layout", "template", "design", "widget", "panel", "promo", "module", "carousel", "box", "onebox", "map"),
}
_PEOPLE_WORDS = {
    *("device", "os", "platform", "browser", "app", "client", "user", "member", "customer", "gender", "age", "segment"),
    *("country", "market", "region", "city", "locale", "language", "lang", "shop", "store", "channel", "referrer"),
}
_ROWS_OF_LAYOUT = 1 << 18  # most rows to compare propensities between values of a column
_MOST_LAYOUTS = 8  # most values of such a column
_SPLIT = 0.1  # least reported difference of log propensities
_SILENT = 20  # least expected clicks of a reported position without clicks


def find_layout(log: Log) -> list[Finding]:
    """Return the page-level column whose values differ most in propensities, as a finding; empty if there is none.

    Propensities are compared by the test of the product form, with the column as a cell column. Columns that affect
    relevance (see `relevance_score`) are left out.
    """
    if not log.has_sessions or log.roles.cell or log.roles.context or log.raw is not None or log.roles.weight:
        return []
    columns = [name for name in _free_columns(log) if name not in RESERVED][:_MOST_COLUMNS]
    rows = _read_first_rows(log, columns, _ROWS_OF_LAYOUT).filter(pl.col(REJECTED) == 0, pl.col(POSITION) <= _DEEPEST)
    names = [name for name in page_level_columns(rows, columns) if rows[name].n_unique() <= _MOST_LAYOUTS]
    level, effects = _FALSE / max(len(names), 1), list[tuple[float, str, str]]()
    for name in names:
        effect = _column_effect(rows, name, level)
        if effect is not None and (relevance_score(rows, name) or 0.0) <= NormalDist().inv_cdf(1 - level):
            effects.append((*effect, name))
    if not effects:
        return []
    _, how, name = min(effects)
    if not _PAGE_WORDS.isdisjoint(words_in(name)):
        return [Finding(f"{how}: it is part of where a result stands", option("--cell", name), certain=False)]
    if not _PEOPLE_WORDS.isdisjoint(words_in(name)):
        return [Finding(f"{how}. Name it with --context {name}: each of its values has propensities of its own")]
    which = f"--cell {name} if the page differs by it (an advert above, a layout), with --context {name} if people do"
    return [Finding(f"{how}. Name it with {which}", certain=False)]


def _column_effect(rows: pl.DataFrame, name: str, level: float) -> tuple[float, str] | None:
    """Return the p-value and a sentence on how propensities differ by a column; None if they hardly differ."""
    statistics, estimate = _estimate(rows, (name,))
    if estimate is None or estimate.fitted is None:
        return None
    product = fit_product(estimate.fitted, statistics.axes_of_cell, statistics.context_of_cell)
    if product is None or not product.test.p_value < level or abs(product.test.difference) < _SPLIT:
        return None
    counts = statistics.counts_by_cell().with_columns(pl.Series("theta", estimate.propensity))
    cells = counts.drop_nans("theta")
    usual, other, *_ = cells.group_by(name).agg(pl.col(IMPRESSIONS).sum()).sort(IMPRESSIONS, descending=True)[name]
    usual_cells, other_cells = (cells.filter(pl.col(name).eq_missing(value)) for value in (usual, other))
    pairs = usual_cells.join(other_cells, on=POSITION, maintain_order="left")
    if not pairs.height:
        return None
    ratio, at = (pairs["theta_right"] / pairs["theta"]).to_list(), pairs[POSITION].to_list()
    text = f"where {name!r} is {other!r}, position {at[0]} gets {ratio[0]:.2f} of the attention that it gets with"
    text = f"{text} {usual!r}, and position {at[-1]} {ratio[-1]:.2f}"
    silent = counts.filter(pl.col(name).eq_missing(other), pl.col(CLICKS) == 0).join(usual_cells, on=POSITION)
    silent = silent.filter(pl.col(IMPRESSIONS) * pl.col("clicks_right") > _SILENT * pl.col("impressions_right"))
    if silent.height:
        places = positions_in_words(silent[POSITION].sort().to_list())
        text += f"; with {other!r}, nobody clicks at {places}, as if that were not logged"
    return product.test.p_value, text


def _theta_by_position(rows: pl.DataFrame) -> pl.DataFrame:
    """Estimate `theta` by `position` from rows in memory; without rows if it cannot be estimated."""
    statistics, estimate = _estimate(rows)
    if estimate is None:
        return pl.DataFrame(schema={POSITION: pl.Int32, "theta": pl.Float64})
    return statistics.counts_by_cell().select(POSITION, pl.Series("theta", estimate.propensity))


def _estimate(rows: pl.DataFrame, cell: tuple[str, ...] = ()) -> tuple[SufficientStatistics, Estimate | None]:
    """Count rows in memory and estimate theta by the conditional estimator; None if it cannot be estimated."""
    plan = StatisticsPlan(get_model("pbm"), cell=cell)
    counted = plan.count_in_cells(nw.from_native(rows.select(QUERY, DOC, POSITION, CLICK, *cell).lazy())).to_native()
    statistics = merge_parts([compress_part(counted.sort(plan.keys).collect(), plan)], plan)
    estimator, counts = ConditionalEstimator(), (statistics, statistics.strata())
    try:
        return statistics, estimator.estimate(*counts, EstimationOptions(), lambda _: None)
    except (IdentifiabilityError, UsageError, np.linalg.LinAlgError, OverflowError):
        return statistics, None
