"""OpenSearch User Behavior Insights (UBI 1.3): documents of `ubi_queries` and `ubi_events` as a log of pages."""
