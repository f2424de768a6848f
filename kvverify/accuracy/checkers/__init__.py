"""Exact rules: a function of the sample and the answer's text. No answer, however broken, makes one raise."""
