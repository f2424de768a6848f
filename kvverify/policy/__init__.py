"""Policies: what a release or the phase of a rollout must show, as a file; and what recorded runs say to it."""
