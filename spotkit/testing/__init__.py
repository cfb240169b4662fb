"""Toy targets and checks for authors of adapters, drafters and rules."""
