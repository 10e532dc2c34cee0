"""The collector and the worker programs on virtual time, in one thread: to search for bugs, and to plan fleets."""
