"""The frozen context of each page, loaded from the insights; a template shows nothing else."""
