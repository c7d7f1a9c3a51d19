"""Trees of LightGBM as search engines load them, and their scores by the arithmetic of each engine."""
