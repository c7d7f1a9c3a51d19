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
        """Return the impressions unchanged: the position is the cell."""
        return impressions

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Return theta of the position, shape (N, L)."""
        return at_position(parameters[THETA], pages.position)

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Return theta times gamma, shape (N, L)."""
        return self.given_clicks(parameters, pages)


RELEVANCE = Parameter("relevance", "unit", prior=BetaPrior(0.5, 2.0))
CLICK_IF_RELEVANT = Parameter("click_if_relevant", "position", start=0.6)
CLICK_IF_NOT = Parameter("click_if_not_relevant", "position", start=0.1)


class TrustBiasModel(ClickModel):
    """TPBM: P(C_r = 1) = theta_k (eps+_k gamma_qd + eps-_k (1 - gamma_qd)) = alpha_k gamma_qd + beta_k.

    The parameters are p_k = theta_k eps+_k = alpha_k + beta_k and q_k = theta_k eps-_k = beta_k, the probability of a
    click at position k on a relevant and on an irrelevant document. Click probabilities are invariant under

        gamma -> (gamma - u) / (v - u),   p -> q + v (p - q),   q -> q + u (p - q)

    so that gamma, p and q are identified at best up to such a transformation, and only predictions do not depend on it.
    The prior of gamma, uniform on (0, 1), fixes its scale. Theta and eps are not identified separately, so that this
    model has no propensities.
    """

    name = "tpbm"
    reference = "Agarwal et al. 2019 (WWW); Vardasbi, Oosterhuis & de Rijke 2020 (CIKM)"
    about = "PBM in which what stands high is clicked for that alone"
    parameters = (RELEVANCE, CLICK_IF_RELEVANT, CLICK_IF_NOT)
    statistics_columns = (POSITION,)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Every impression is a trial of relevance, and with P(relevant | click or no click) of p, else of q."""
        gamma, p, q = self._values(parameters, pages)
        clicked = np.where(pages.click, gamma * p, gamma * (1 - p))
        relevant = clicked / np.where(pages.click, gamma * p + (1 - gamma) * q, 1 - gamma * p - (1 - gamma) * q)
        return {
            RELEVANCE.name: Ratio(relevant, np.ones(gamma.shape)),
            CLICK_IF_RELEVANT.name: Ratio(relevant * pages.click, relevant),
            CLICK_IF_NOT.name: Ratio((1 - relevant) * pages.click, 1 - relevant),
        }

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Return gamma p + (1 - gamma) q, shape (N, L)."""
        gamma, p, q = self._values(parameters, pages)
        return gamma * p + (1 - gamma) * q

    @staticmethod
    def _values(parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats, Floats]:
        p, q = (at_position(parameters[p.name], pages.position) for p in (CLICK_IF_RELEVANT, CLICK_IF_NOT))
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
        """Add `previous_click`; rows may be in any order, and positions may have gaps.

        Within a session by position: the position where clicked, else 0, shifted by one row, then the running maximum.
        E.g.: position [1, 2, 4, 5], click [0, 1, 1, 0] -> [0, 2, 4, 0] -> [-, 0, 2, 4] -> [0, 0, 2, 4].
        """
        # Two steps: narwhals refuses a shift and a running maximum over one window in one expression.
        clicked_position = nw.when(nw.col(CLICK) == 1).then(nw.col(POSITION)).otherwise(NO_PREVIOUS_CLICK)
        above = impressions.with_columns(clicked_position.alias(PREVIOUS_CLICK)).with_columns(
            nw.col(PREVIOUS_CLICK).shift(1).over(SESSION, order_by=POSITION).fill_null(NO_PREVIOUS_CLICK)
        )
        return above.with_columns(nw.col(PREVIOUS_CLICK).cum_max().over(SESSION, order_by=POSITION))

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Add `previous_click`, several times faster for sessions that are whole numbers.

        Rows are sorted by the place, P session + position. With P session for rows without a click, the running maximum
        is the place of the last click on the same page, or on an earlier page.
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
        """Return theta of the position and the last click above it, shape (N, L)."""
        theta = parameters[THETA]
        last = len(theta) - 1
        return theta[np.minimum(pages.position, last), np.minimum(pages.previous_click, last)]

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1) = sum over the last click r' of P(R' = r') theta_{r r'} gamma, from the top down, shape (N, L)."""
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
    """P(C_r = 1) = rho, a click rate by unit, by position, or for all impressions, as the shape of its parameter."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    unit_columns: tuple[str, ...] = PAIR
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    closed_form = True
    statistics_columns = (POSITION,)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:  # noqa: ARG002 - of any rates
        """Return clicks and impressions."""
        return {self.parameters[0].name: Ratio(pages.click.astype(np.float64), pages.shown.astype(np.float64))}

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Return the rate, shape (N, L)."""
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
