"""Talking to live servers: the client, control and metrics, engines and the evidence they give, the gate."""
