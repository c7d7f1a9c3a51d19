"""The user browsing model: examination depends on the position and on the last click above it."""

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters
from posbias.core.log.pages import PLACE, with_places
from posbias.core.models.click_model import ATTRACTIVENESS
from posbias.core.models.model import FactorisedClickModel
from posbias.core.schema import CLICK, NO_PREVIOUS_CLICK, POSITION, PREVIOUS_CLICK, SESSION


class UserBrowsingModel(FactorisedClickModel):
    """UBM: P(click) = theta_{r r'} * gamma_qd, r the position, r' that of the last click above it, 0 = none.

    K (K + 1) / 2 cells for pages of K positions.
    """

    name = "ubm"
    reference = "Dupret & Piwowarski 2008 (SIGIR)"
    about = "examination depends on the position and on the last click above it"
    parameters = (ATTRACTIVENESS, Parameter("examination", "position and previous click"))
    cell_columns = statistics_columns = (POSITION, PREVIOUS_CLICK)
    needs_session = True

    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Add `previous_click`, whatever the order of the rows and whichever positions a page shows.

        Within a session by position: the position where clicked, else 0, moved down one row, then the running maximum.
        E.g.: position [1, 2, 4, 5], click [0, 1, 1, 0] -> [0, 2, 4, 0] -> [-, 0, 2, 4] -> [0, 0, 2, 4].
        """
        # Two steps: narwhals refuses a shift and a running maximum over one window in one expression.
        clicked_position = nw.when(nw.col(CLICK) == 1).then(nw.col(POSITION)).otherwise(NO_PREVIOUS_CLICK)
        above = impressions.with_columns(clicked_position.alias(PREVIOUS_CLICK)).with_columns(
            nw.col(PREVIOUS_CLICK).shift(1).over(SESSION, order_by=POSITION).fill_null(NO_PREVIOUS_CLICK)
        )
        return above.with_columns(nw.col(PREVIOUS_CLICK).cum_max().over(SESSION, order_by=POSITION))

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """The same, several times faster where sessions are whole numbers: the rows are sorted by one number.

        That number is the place, P session + position. Where a row without a click has P session instead, the running
        maximum is the place of the last click on the same page, or lies on an earlier page.
        """
        placed = with_places(impressions)
        if placed is None:
            return super().with_cells_in_memory(impressions)
        in_order = placed.sort(PLACE)
        place, shown = in_order[PLACE].to_numpy(), in_order[POSITION].to_numpy()
        page_start = place - shown
        clicked = np.where(in_order[CLICK].to_numpy() == 1, place, page_start)
        above = np.roll(np.maximum.accumulate(clicked), 1)
        above[0] = 0
        previous = np.maximum(above - page_start, NO_PREVIOUS_CLICK).astype(np.int32)
        return in_order.drop(PLACE).with_columns(pl.Series(PREVIOUS_CLICK, previous))

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Theta of the position and the last click above it."""
        theta = parameters[self.theta.name]
        last = len(theta) - 1
        return theta[np.minimum(pages.position, last), np.minimum(pages.previous_click, last)]

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1) = sum over the last click r' of P(R' = r') theta_{r r'} gamma, from the top down."""
        theta, gamma = parameters[self.theta.name], parameters[ATTRACTIVENESS.name][pages.unit]
        position = np.minimum(pages.position, len(theta) - 1)
        above = np.concatenate([np.zeros((pages.n_pages, 1), dtype=np.int64), position], axis=1)
        probability = np.zeros(gamma.shape)
        last_click = np.zeros((pages.n_pages, pages.n_ranks + 1))  # P(R' is none, the first, the second ...)
        last_click[:, 0] = 1.0
        for rank in range(pages.n_ranks):
            clicked = theta[position[:, rank, np.newaxis], above[:, : rank + 1]] * gamma[:, rank, np.newaxis]
            probability[:, rank] = (last_click[:, : rank + 1] * clicked).sum(axis=1)
            last_click[:, : rank + 1] *= 1 - clicked
            last_click[:, rank + 1] = probability[:, rank]
        return probability
