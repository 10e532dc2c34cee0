"""Train device-control agents with reinforcement learning on any machines you can ssh to."""

__version__ = "0.1.0"
