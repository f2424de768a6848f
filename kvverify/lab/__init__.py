"""A small reference server: a KV cache in two tiers and formats behind an OpenAI-like interface, with faults on request.

It exists to test kvverify and to let people try it without a GPU. It is no serving engine: one request is computed at a time,
every step reads the whole cache through the reference codecs of :mod:`kvverify.codecs`, and no effort goes into speed.
"""
