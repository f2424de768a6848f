"""The sign-off: the events of any number of runs -> one page that a person can decide by, and the same for machines.

gather -> subject, questions, evidence, figures, gaps -> Signoff -> page, Markdown, JUnit, JSON
"""
