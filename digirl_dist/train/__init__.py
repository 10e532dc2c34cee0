"""Training with emulators on every rank: each has its own replay and policy, and shares only gradients.

The public function ``digirl_dist.train`` has the name of this package. The package is therefore callable as that
function, whichever of the two was imported first.
"""

import sys
from types import ModuleType
from typing import Any

from digirl_dist.capacity import let_waiting_threads_sleep


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        let_waiting_threads_sleep()
        from digirl_dist.api.training import train

        return train(*arguments, **settings)


sys.modules[__name__].__class__ = _CallablePackage
