"""RULER's thirteen tasks: how samples are made, to what length, and how answers are scored.

The construction is that of NVIDIA/RULER (main branch, synthetic tasks), written anew; the wording of the prompts is taken from
there word for word (:mod:`kvverify.accuracy.ruler.templates`). What differs, on purpose: each sample has a seed of its own; a sample
is filled to its length by itself and not in steps of 25 or 500 units; keys, values and variables within a sample are
distinct; needles, word lists and documents are shuffled anew in each sample, where upstream uses one permutation for all.
"""
