from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings

# Models of this size gain nothing from more threads, and two runs on two cores would wait for each other.
torch.set_num_threads(1)

# The examples are whole decodes, so they are slow for Hypothesis' taste; nothing here is timed.
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW)
settings.register_profile(
    "ci", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW
)
settings.register_profile("nightly", max_examples=5_000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("SPOTKIT_TEST_PROFILE", "ci"))
