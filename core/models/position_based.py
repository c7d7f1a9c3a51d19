"""Click models by position: `pbm`, `tpbm`, `ubm`, and click rates."""

from dataclasses import dataclass, replace

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.choices import BetaPrior
from posbias.core.log.pages import PLACE, add_place
from posbias.core.models import ATTRACTIVENESS, THETA, ClickModel, FactorisedClickModel
from posbias.core.models.page_matrices import Flags, Floats, PageBatch, Parameter, Parameters, Ratio, at_position
from posbias.core.schema import CLICK, NO_PREVIOUS_CLICK, PAIR, POSITION, PREVIOUS_CLICK, SESSION


class PositionBasedModel(FactorisedClickModel):
    """PBM: P(click) = theta_k * gamma_qd, k the position. K cells."""

    name = "pbm"
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    about = "examination depends on the position"
    parameters = (ATTRACTIVENESS, Parameter(THETA, "position"))
    statistics_columns = (POSITION,)

    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """The position is the cell: nothing to add."""
        return impressions

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Theta of the position."""
        return at_position(parameters[THETA], pages.position)

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Theta times gamma, whatever was clicked above."""
        return self.given_clicks(parameters, pages)


RELEVANCE = Parameter("relevance", "unit", prior=BetaPrior(0.5, 2.0))
CLICK_IF_RELEVANT = Parameter("click_if_relevant", "position", start=0.6)
CLICK_IF_NOT = Parameter("click_if_not_relevant", "position", start=0.1)


class TrustBiasModel(ClickModel):
    """TPBM: P(C_r = 1) = theta_k (eps+_k gamma_qd + eps-_k (1 - gamma_qd)) = alpha_k gamma_qd + beta_k.

    Its parameters are p_k = theta_k eps+_k = alpha_k + beta_k and q_k = theta_k eps-_k = beta_k, a click's
    probability at position k on a relevant document and on another. Clicks do not change under

        gamma -> (gamma - u) / (v - u),   p -> q + v (p - q),   q -> q + u (p - q)

    so that they tell gamma, p and q at best up to such a change; predictions are the same under all of them. Here gamma
    is on the scale on which it is spread evenly from 0 to 1, its prior. Theta and eps cannot be separated at all, which
    is why this model has no propensities.
    """

    name = "tpbm"
    reference = "Agarwal et al. 2019 (WWW); Vardasbi, Oosterhuis & de Rijke 2020 (CIKM)"
    about = "PBM in which what stands high is clicked for that alone"
    parameters = (RELEVANCE, CLICK_IF_RELEVANT, CLICK_IF_NOT)
    statistics_columns = (POSITION,)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Each impression says whether its document is relevant, as far as a click or its absence tells that."""
        gamma, p, q = self._values(parameters, pages)
        clicked = np.where(pages.click, gamma * p, gamma * (1 - p))
        relevant = clicked / np.where(pages.click, gamma * p + (1 - gamma) * q, 1 - gamma * p - (1 - gamma) * q)
        return {
            RELEVANCE.name: Ratio(relevant, np.ones(gamma.shape)),
            CLICK_IF_RELEVANT.name: Ratio(relevant * pages.click, relevant),
            CLICK_IF_NOT.name: Ratio((1 - relevant) * pages.click, 1 - relevant),
        }

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Gamma p + (1 - gamma) q."""
        gamma, p, q = self._values(parameters, pages)
        return gamma * p + (1 - gamma) * q

    @staticmethod
    def _values(parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats, Floats]:
        p, q = (at_position(parameters[name.name], pages.position) for name in (CLICK_IF_RELEVANT, CLICK_IF_NOT))
        return parameters[RELEVANCE.name][pages.unit], p, q


class UserBrowsingModel(FactorisedClickModel):
    """UBM: P(click) = theta_{r r'} * gamma_qd, r the position, r' that of the last click above it, 0 = none.

    K (K + 1) / 2 cells for pages of K positions.
    """

    name = "ubm"
    reference = "Dupret & Piwowarski 2008 (SIGIR)"
    about = "examination depends on the position and on the last click above it"
    parameters = (ATTRACTIVENESS, Parameter(THETA, "position and previous click"))
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
        """Add `previous_click`, several times faster where sessions are whole numbers: rows are sorted by one number.

        That number is the place, P session + position. Where a row without a click has P session instead, the running
        maximum is the place of the last click on the same page, or lies on an earlier page.
        """
        placed = add_place(impressions)
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
        theta = parameters[THETA]
        last = len(theta) - 1
        return theta[np.minimum(pages.position, last), np.minimum(pages.previous_click, last)]

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1) = sum over the last click r' of P(R' = r') theta_{r r'} gamma, from the top down."""
        theta, gamma = parameters[THETA], parameters[ATTRACTIVENESS.name][pages.unit]
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


@dataclass(frozen=True, kw_only=True)
class ClickRateModel(ClickModel):
    """P(C_r = 1) = rho, a rate by what the one parameter of the model differs by."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    unit_columns: tuple[str, ...] = PAIR
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    closed_form = True
    statistics_columns = (POSITION,)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:  # noqa: ARG002 - of any rates
        """Clicks and impressions."""
        return {self.parameters[0].name: Ratio(pages.click.astype(np.float64), pages.shown.astype(np.float64))}

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """The rate, shape (N, L)."""
        (rate,) = self.parameters
        rates = parameters[rate.name]
        if rate.shape == "one":
            return np.full(pages.unit.shape, float(rates))
        return rates[pages.unit] if rate.shape == "unit" else at_position(rates, pages.position)

    def sample(self, parameters: Parameters, pages: PageBatch, rng: np.random.Generator) -> Flags:
        """Draw clicks, all at once."""
        return (rng.random(pages.shown.shape) < self.click_probability(parameters, pages)) & pages.shown


GCTR = ClickRateModel(
    name="gctr", about="every impression is clicked equally often", parameters=(Parameter("click_rate", "one"),)
)
RCTR = ClickRateModel(
    name="rctr", about="clicks depend on the position alone", parameters=(Parameter("click_rate", "position"),)
)
DCTR = ClickRateModel(
    name="dctr", about="clicks depend on the document alone", parameters=(Parameter("click_rate", "unit"),)
)
RDCTR = replace(
    DCTR, name="rdctr", about="a click rate for each document at each position", unit_columns=(*PAIR, POSITION)
)
