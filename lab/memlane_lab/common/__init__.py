"""Helpers of all other folders: errors, strictly read files, waiting, progress, the cache of built products."""
