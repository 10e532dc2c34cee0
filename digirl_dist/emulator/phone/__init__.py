"""The demo phone: a small deterministic touch-screen device drawn with Pillow, for demos, tests and first runs."""

from digirl_dist.emulator.phone.emulator import PHONE_SPEC, DemoPhone
from digirl_dist.emulator.phone.tasks import MAX_STEPS, phone_tasks

__all__ = ["MAX_STEPS", "PHONE_SPEC", "DemoPhone", "phone_tasks"]
