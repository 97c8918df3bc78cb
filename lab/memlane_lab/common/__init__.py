"""What every other folder may use: errors, strictly read files, waiting, progress, the cache of built things."""
