"""Exact speculative decoding of diffusion language models."""
