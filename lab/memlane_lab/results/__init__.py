"""Results: the files of a run, the samples that may be compared, their summary, and two runs side by side."""
