"""The verdict of accuracy runs and of their comparisons."""
