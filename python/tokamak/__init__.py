"""Tokamak pretrains large language models. The program is `tokamak`; this package holds what speaks Python to it."""
