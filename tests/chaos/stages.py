"""What the host does while a worker lies in content: it collects, it learns, or it is a notebook that does nothing."""

from __future__ import annotations

from enum import Enum

from chaos.ground import TRAINS, Program

EPISODES = 60
"""Of a round, where rounds have an end."""
PAUSE_S = 10.0
"""How long an update takes, and how long a notebook does nothing."""
_ENDLESS = 3000
_NUMBERS = ["emulator=rehearsal", "emulator.reset_s=0.2", "emulator.step_s=0.06", "emulator.steps=5"]
_SCREENS = ["emulator=custom", "emulator.entry_point=chaos.lab:Screens"]


class Phase(Enum):
    """When the worker lies."""

    collecting = "collecting"
    """One iteration without end."""
    learning = "learning"
    """Iterations whose updates last ``PAUSE_S``."""
    idle = "idle"
    """A fleet that does nothing for ``PAUSE_S`` after each collection."""

    def program(self, screens: bool) -> Program:
        emulator = _SCREENS if screens else _NUMBERS
        if self is Phase.idle:
            return Program(["-m", "chaos.notebook", str(PAUSE_S), str(EPISODES), str(_ENDLESS)], emulator)
        seconds, episodes = (PAUSE_S, EPISODES) if self is Phase.learning else (0.0, _ENDLESS)
        learns_by = "[ppo]" if screens else "[filtered_bc,digirl,ppo]"
        algorithm = ["algorithm.entry_point=chaos.lab:SlowLearner", f"algorithm.kwargs.seconds={seconds}"]
        algorithm.append(f"algorithm.kwargs.algorithms={learns_by}")
        sizes = [f"rollout_size={episodes}", f"trainer.replay_size={_ENDLESS}"]
        return Program(TRAINS, [*emulator, "agent=generic", *algorithm, *sizes])
