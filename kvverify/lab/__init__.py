"""A small reference server for trying and testing kvverify. It is no serving engine."""
