"""The host's policy process: keeps versions in memory and decides batches until its owner closes the connection.

``python -m digirl_dist.inference.policy_process SOCKET [newest]`` first receives the packed agent; then each request
gets one reply. With ``newest``, that version acts for all episodes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from digirl_dist.errors import told
from digirl_dist.exit_status import end_without_a_search_for_garbage
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.inference.requests import InferenceFailure, InferenceReply, InferenceRequest
from digirl_dist.parallel.compute_device import device_failed
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.user_code.packing import unpack


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its owner ends it
    end_without_a_search_for_garbage()
    requests = Connection(int(argv[0]))
    try:
        handler = RequestHandler(requests.recv_bytes(), "newest" in argv[1:])
        while True:
            request, content = requests.recv()
            requests.send(handler.serve(content) if request == "serve" else handler.decide(content))
    except (EOFError, OSError):
        return 0


class RequestHandler:
    """Serves inference requests; failures carry a reason."""

    def __init__(self, packed_agent: bytes, newest: bool = False) -> None:
        self._policies = LocalPolicies(lambda: unpack(packed_agent)(), newest=newest)
        self._missing: dict[int, str] = {}

    def serve(self, checkpoints: Mapping[int, Checkpoint]) -> dict[int, str]:
        """Loads these versions and drops all others; returns those that cannot be loaded, with the reason."""
        self._policies.retire(set(checkpoints))
        self._missing = {}
        for version in checkpoints.keys() - set(self._policies):
            try:
                self._policies.load(version, checkpoints[version].state())
            except Exception as error:
                if device_failed(error):
                    raise  # so this process ends, and its owner starts another
                self._missing[version] = told(error)
        return self._missing

    def decide(self, requests: Sequence[InferenceRequest]) -> list[InferenceReply]:
        """Returns one reply per request. If the batch fails, decides one by one to find the requests that fail."""
        known = [request for request in requests if request.version in self._policies]
        unknown = [self._unknown(request) for request in requests if request.version not in self._policies]
        try:
            self._policies.ask(known)
        except Exception as error:
            if device_failed(error):
                raise
            self._policies.answers()
            if len(known) == 1:
                return [*unknown, InferenceFailure(known[0].number, told(error))]
            return [*unknown, *(answer for request in known for answer in self.decide([request]))]
        return [*unknown, *self._policies.answers()]

    def _unknown(self, request: InferenceRequest) -> InferenceFailure:
        why = self._missing.get(request.version, "it is out of use")
        return InferenceFailure(request.number, f"the host no longer acts with policy version {request.version}: {why}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
