"""Propensities from features, for logs in which no (query, document) pair repeats.

What a document's features say of its relevance and of its place makes rows comparable that share no pair: `nuisances`
learns both, and `strata` counts clicks and exposure by them for the conditional likelihood.
"""
