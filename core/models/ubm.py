"""The user browsing model: examination depends on the position and on the last click above it."""

from dataclasses import dataclass

import narwhals as nw
from narwhals.typing import IntoLazyFrameT

from posbias.core.schema import CLICK, NO_PREVIOUS_CLICK, POSITION, PREVIOUS_CLICK, SESSION


@dataclass(frozen=True)
class UserBrowsingModel:
    """UBM: P(click) = theta_{r r'} * gamma_qd, r the position, r' that of the last click above it, 0 = none.

    K (K + 1) / 2 cells for pages of K positions.
    """

    name: str = "ubm"
    reference: str = "Dupret & Piwowarski 2008 (SIGIR)"
    cell_columns: tuple[str, ...] = (POSITION, PREVIOUS_CLICK)
    needs_session: bool = True

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
