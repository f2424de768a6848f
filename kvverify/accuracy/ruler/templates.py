"""What RULER asks, word for word.

The wording of the prompts and answer prefixes is Copyright (c) 2024, NVIDIA CORPORATION, from NVIDIA/RULER,
scripts/data/synthetic/constants.py, licensed under the Apache License, Version 2.0. A needle task that asks for one
value has the singular, which upstream makes by replacing words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wording:
    """``head`` + context + ``tail`` is the prompt, ``answer_prefix`` how the answer begins, ``max_tokens`` what is generated."""

    head: str
    tail: str
    answer_prefix: str
    max_tokens: int

    def filled(self, **values: str) -> Wording:
        """Return the wording with its fields filled in."""
        parts = (self.head, self.tail, self.answer_prefix)
        head, tail, prefix = (part.format(**values) for part in parts)
        return Wording(head, tail, prefix, self.max_tokens)


NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DOCUMENT = "Document {number}:\n"

ONE_VALUE = Wording(
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "\nWhat is the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text is",
    128,
)
MANY_VALUES = Wording(
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "\nWhat are all the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text are",
    128,
)
VARIABLES = Wording(
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    "\nQuestion: Find all variables that are assigned the value {query} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, "
    "{number} variables are assigned the value {query}, they are: ",
    30,
)
COMMON_WORDS = Wording(
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n",
    "\nQuestion: What are the 10 most common words in the above list?",
    " Answer: The top 10 words that appear most often in the list are:",
    120,
)
FREQUENT_WORDS = Wording(
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. ",
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
    50,
)
DOCUMENTS = Wording(
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n",
    "\n\nAnswer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: {query}",
    " Answer:",
    32,
)
