"""Tasks of the lm-eval package: it writes the questions and scores the answers; kvverify asks, counts and records."""
