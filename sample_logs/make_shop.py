"""Makes the logs of a shop that is ranked in two ways, the features of its products, and what they are worth.

    python sample_logs/make_shop.py [FOLDER]

A product is worth 1 / (1 + exp(1.5 - text_match - .6 rating - unseen)), which is how often it is clicked once it is
looked at; no feature says what is `unseen`. The product at position k is looked at with probability 1 / k. Both rankers
draw each page anew: `margin` by what the shop earns, which says nothing of worth, and a little by the text; `expert` by
the worth.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

QUERIES, PRODUCTS, SHOWN, PAGES = 300, 15, 10, 3_000


def main() -> None:
    """Draw the shop, then its logs, and write them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    rng = np.random.default_rng(7)
    text, rating, margin, age, unseen = rng.standard_normal((5, QUERIES, PRODUCTS))
    worth = 1 / (1 + np.exp(1.5 - text - 0.6 * rating - unseen))
    number = pl.int_range(QUERIES * PRODUCTS)
    names = pl.select(query=pl.format("query {}", number // PRODUCTS), doc=pl.format("product {}", number))
    features = {"text_match": text, "rating": rating, "margin": margin, "age": age}
    columns = [pl.Series(name, values.ravel(), pl.Float32) for name, values in features.items()]
    names.with_columns(columns).write_parquet(folder / "shop_features.parquet")
    names.with_columns(pl.Series("worth", worth.ravel(), pl.Float32)).write_parquet(folder / "shop_truth.parquet")
    popular = 1 / np.arange(1, QUERIES + 1)
    asked = rng.choice(QUERIES, PAGES, p=popular / popular.sum())
    for ranker, liking in (("margin", margin + 0.3 * text), ("expert", 6 * worth)):
        noise = 0.5 * rng.gumbel(size=(PAGES, PRODUCTS))
        shown = np.argsort(-liking[asked] - noise, axis=1)[:, :SHOWN]
        position = np.arange(1, SHOWN + 1)
        click = rng.random(shown.shape) < worth[asked[:, np.newaxis], shown] / position
        rows = names[(asked[:, np.newaxis] * PRODUCTS + shown).ravel()].with_columns(
            pl.Series("session", np.arange(PAGES).repeat(SHOWN), pl.Int32),
            pl.Series("position", np.tile(position, PAGES), pl.Int8),
            pl.Series("click", click.ravel(), pl.Int8),
        )
        rows.select("session", "query", "doc", "position", "click").write_parquet(folder / f"shop_{ranker}.parquet")


if __name__ == "__main__":
    main()
