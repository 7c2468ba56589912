"""How long the model test goes on: `--hypothesis-profile=long` for hours of it, else briefly."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

_STEPS = settings(
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

settings.register_profile("long", _STEPS, max_examples=600, stateful_step_count=80)
settings.register_profile("model", _STEPS, max_examples=30, derandomize=True)
