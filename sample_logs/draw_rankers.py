r"""Draw what rankers from the clicks of the shop are worth, by what its products are worth, as an SVG.

    python sample_logs/draw_rankers.py FOLDER PICTURE

FOLDER has the rankers, made from the directory of the repository by

    for log in margin expert; do
      posbias fit sample_logs/shop_$log.parquet -o fit-$log
      for learner in naive pbm auto; do
        posbias train sample_logs/shop_$log.parquet --features sample_logs/shop_features.parquet \
          --propensities fit-$log --learner $learner -o $log-$learner
      done
    done
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

WIDTH, ROW, LEFT, LEAST = 640, 24, 250, 0.6
COLOURS = {
    "the log's own order": "#888888",
    "naive clicks": "#c2571a",
    "pbm": "#7fb2d9",
    "auto, the default": "#0b62a4",
}
SAMPLES = Path(__file__).parent


def main() -> None:
    """Judge the rankers and write the picture."""
    folder, picture = map(Path, sys.argv[1:3])
    worth = pl.read_parquet(SAMPLES / "shop_truth.parquet")
    lines, at = list[str](), 10
    for log in ("margin", "expert"):
        shown = pl.read_parquet(SAMPLES / f"shop_{log}.parquet").with_columns(score=-pl.col("position"))
        rankings = [
            shown,
            *(pl.read_parquet(folder / f"{log}-{name}" / "scores.parquet") for name in ("naive", "pbm", "auto")),
        ]
        lines.append(f'<text x="10" y="{at + 15}" font-weight="bold">shop_{log}.parquet</text>')
        for (name, colour), ranking in zip(COLOURS.items(), rankings, strict=True):
            at += ROW
            value = ndcg(ranking, worth)
            length = (WIDTH - LEFT - 60) * (value - LEAST) / (1 - LEAST)
            lines += [
                f'<text x="{LEFT - 10}" y="{at + 15}" text-anchor="end">{name}</text>',
                f'<rect x="{LEFT}" y="{at + 2}" width="{length:.1f}" height="{ROW - 6}" fill="{colour}"/>',
                f'<text x="{LEFT + length + 6:.1f}" y="{at + 15}">{value:.3f}</text>',
            ]
        at += ROW + 14
    words = f"NDCG@10 by what products are worth; the bars begin at {LEAST}"
    lines.append(f'<text x="10" y="{at + 10}">{words}</text>')
    box, font = f'viewBox="0 0 {WIDTH} {at + 20}"', 'font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {font} role="img" aria-label="{words}">'
    ground = f'<rect width="{WIDTH}" height="{at + 20}" fill="#ffffff"/>'
    picture.write_text("\n".join([head, ground, *lines, "</svg>", ""]), encoding="utf-8")


def ndcg(ranking: pl.DataFrame, worth: pl.DataFrame) -> float:
    """The mean over queries, and over the pages of each, of NDCG@10, gains as they are."""
    discount = 1 / np.log2(np.arange(2, 12))
    by = ["session", "query"] if "session" in ranking.columns else ["query"]
    gains = ranking.join(worth, on=["query", "doc"]).sort("score", descending=True)
    found = gains.group_by(by).agg(dcg=(pl.col("worth").head(10) * pl.Series(discount)).sum())
    best = (
        worth.sort("worth", descending=True)
        .group_by("query")
        .agg(best=(pl.col("worth").head(10) * pl.Series(discount)).sum())
    )
    by_query = found.join(best, on="query").group_by("query").agg((pl.col("dcg") / pl.col("best")).mean())
    return float(by_query.select(pl.col("dcg").mean()).item())


if __name__ == "__main__":
    main()
