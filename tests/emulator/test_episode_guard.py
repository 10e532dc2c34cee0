"""What is wrong with an episode is found before it is stored, and named with its place."""

from __future__ import annotations

import io
import math
import struct
import time
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from image_files import encoded
from PIL import Image

from digirl_dist.agent.plugins import AgentPlugin
from digirl_dist.agent.plugins.autoui import AutoUiSettings
from digirl_dist.agent.plugins.device import DeviceAgentSettings
from digirl_dist.agent.plugins.endpoint import EndpointSettings
from digirl_dist.agent.plugins.generic import GenericAgentSettings
from digirl_dist.agent.plugins.vlm import VlmSettings
from digirl_dist.emulator import BoxActions, DeviceActions, DiscreteActions, EmulatorSpec, ProductActions
from digirl_dist.emulator.episode_guard import EpisodeGuard, _is_plain_png
from digirl_dist.errors import ActionError, TrajectoryError
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

SPEC = EmulatorSpec(DiscreteActions(3), vector_size=2, image_size=(6, 4))
SIGNATURE = b"\x89PNG\r\n\x1a\n"
TICKET = Ticket(4, 1, Task("open", "open it"), seed=9, policy_version=4)
GUARD = EpisodeGuard("phone", SPEC, 3, GenericAgentSettings().check_action)


def picture(width: int = 4, height: int = 6, form: str = "png") -> bytes:
    return encoded(Image.new("RGB", (width, height), (90, 0, 0)), form)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def bomb(side: int) -> bytes:
    """A PNG whose header promises side x side pixels, and whose content is next to nothing."""
    return SIGNATURE + header(side, side) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def stuffed(kind: bytes, size: int) -> bytes:
    """A PNG with one more chunk behind its header."""
    return picture()[:33] + chunk(kind, bytes(size)) + picture()[33:]


def commented(size: int) -> bytes:
    """A JPEG with comments of so many bytes."""
    plain = picture(form="jpeg")
    comment = b"\xff\xfe" + struct.pack(">H", size // 2 + 2) + bytes(size // 2)
    return plain[:2] + 2 * comment + plain[2:]


def seen(**changed: Any) -> Observation:
    return Observation(**{"text": "open it", "image": picture(), "vector": np.ones(2, np.float32), **changed})


def step(**changed: Any) -> Step:
    usual = {"observation": seen(), "action": 1, "log_prob": -0.5, "reward": 1.0}
    return Step(**{**usual, "terminated": False, "truncated": False, **changed})


def nested(levels: int) -> Any:
    """What one thread can read, and another with more on its stack cannot write."""
    value: Any = []
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def of_tokens(tokens: list[int], log_probs: list[float], log_prob: float = -0.5) -> dict[str, Any]:
    return {"action": {"tokens": tokens}, "token_log_probs": log_probs, "log_prob": log_prob}


LAST = step(terminated=True)


def episode(*steps: Step, **changed: Any) -> Trajectory:
    usual = {"ticket": TICKET, "episode_id": "e", "worker": "w1", "slot": 0, "steps": steps or (step(), LAST)}
    return Trajectory(**{**usual, "final_observation": seen(), "success": True, **changed})


def test_an_episode_of_the_ticket_passes() -> None:
    GUARD.check(episode(), TICKET, "w1")
    GUARD.check(episode(step(), step(), step(truncated=True)), TICKET, "w1")


def test_an_answer_of_many_unlikely_tokens_passes_where_its_sum_is_as_low() -> None:
    long = step(**of_tokens([5] * 1000, [-20.0] * 1000, -2e4), terminated=True)
    EpisodeGuard().check(episode(long), TICKET, "w1")


def test_an_episode_of_a_task_with_other_params_is_refused() -> None:
    params = {"app": "Clock", "parts": [{"on": True}]}
    wanted = replace(TICKET, task=replace(TICKET.task, params=params))
    GUARD.check(episode(ticket=wanted), wanted, "w1")
    for other in ({}, {"app": "Maps", "parts": [{"on": True}]}, {"app": "Clock", "parts": nested(50_000)}):
        told = replace(TICKET, task=replace(TICKET.task, params=other))
        with pytest.raises(TrajectoryError, match="other params"):
            GUARD.check(episode(ticket=told), wanted, "w1")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"reward": math.nan}, "the reward is nan"),
        ({"reward": math.inf}, "the reward is inf"),
        ({"reward": 1e39}, "the reward is 1e\\+39"),
        ({"log_prob": math.nan}, "the log-probability of the action is nan"),
        ({"log_prob": -math.inf}, "the log-probability of the action is -inf"),
        ({"reward": 1.1e6}, "the reward is 1.1e\\+06; at most 1e\\+06 is allowed: scale it"),
        ({"log_prob": 0.01}, "the log-probability of the action is 0.01"),
        ({"log_prob": -1.1e4}, "the log-probability of the action is -11000; -10000 to 1000 is allowed"),
        ({"observation": seen(text="x" * 131_073)}, "a text of 131073 characters; at most 131072 are allowed"),
        ({"observation": seen(vector=np.array([1, 1.1e6], np.float32))}, "a vector with the number 1.1e\\+06"),
        ({"observation": seen(vector=np.array(["a"]))}, "no array of numbers"),
        ({"observation": seen(image=stuffed(b"prVt", 100))}, "a chunk b'prVt' of 100 bytes"),
        ({"observation": seen(image=stuffed(b"tEXt", 70_000))}, "70024 bytes that are no pixels; at most 65536"),
        ({"observation": seen(image=picture() + bytes(70_000))}, "70012 bytes that are no pixels"),
        ({"observation": seen(image=stuffed(b"IDAT", 70_000))}, "more than pixels can take"),
        (
            {"observation": seen(image=picture()[:33] + chunk(b"IDAT", b"") * 100 + picture()[33:])},
            "more than 64 chunks",
        ),
        ({"observation": seen(image=commented(70_000))}, "bytes that are no pixels"),
        (of_tokens([5, 7], [-0.5]), "1 log-probabilities of tokens for 2 tokens; there must be one each"),
        (of_tokens([5], [-0.2, -0.3]), "2 log-probabilities of tokens for 1 tokens"),
        ({"token_log_probs": [-0.5]}, "1 log-probabilities of tokens for 0 tokens"),
        (of_tokens([5] * 32_769, [0.0] * 32_769, 0.0), "and at most 32768"),
        (of_tokens([5, 7], [-0.5, math.nan]), "a token's log-probability is not between -10000 and 0.001"),
        (of_tokens([5, 7], [0.5, -1.0]), "a token's log-probability is not between"),
        (of_tokens([5, 7], [-0.5, -3.0]), "log-probabilities of tokens sum up to -3.5, not to -0.5"),
        ({"action": 3}, "outside of the action space: 3 is not an action"),
        ({"action": 1.0}, "outside of the action space"),
        ({"action": math.nan}, "outside of the action space"),
        ({"action": None}, "outside of the action space"),
        ({"action": "x" * (2 << 20)}, "longer than 1048576 bytes"),
        ({"action": "half \ud83d"}, "outside of the action space: .*surrogates not allowed"),
        ({"action": nested(40)}, "nests deeper than 32 levels"),
        ({"action": nested(100_000)}, "outside of the action space"),
        ({"achieved": [{"app": math.nan}]}, "goals that are no list of JSON objects"),
        ({"achieved": [["app"]]}, "goals that are no list of JSON objects"),
        ({"achieved": [{"app": "x" * 100_000}]}, "longer than 65536 bytes"),
        ({"achieved": [{"app": "half \udc00"}]}, "surrogates not allowed"),
        ({"achieved": [{"\ud800": 1}]}, "surrogates not allowed"),
        ({"achieved": [{"app": nested(40)}]}, "nests deeper than 32 levels"),
        ({"truncated": True}, "the episode ends here, but steps follow"),
        ({"observation": seen(text=None)}, "the text of the observation is a NoneType"),
        ({"observation": seen(text="half \ud83d")}, "half a surrogate pair"),
        ({"observation": seen(vector=None)}, "a vector of 0 numbers; the emulator's spec says vector_size=2"),
        ({"observation": seen(vector=np.ones(8, np.float32))}, "a vector of 8 numbers"),
        ({"observation": seen(vector=np.array([1, np.nan], np.float32))}, "has NaN or infinite numbers"),
        ({"observation": seen(image=None)}, "has no image"),
        ({"observation": seen(image=picture(5, 6))}, "an image of 6 x 5 pixels; the emulator's spec says 6 x 4"),
        ({"observation": seen(image=picture(form="gif"))}, "cannot be decoded"),
        ({"observation": seen(image=picture()[:-30])}, "cannot be decoded"),
        ({"observation": seen(image=b"")}, "cannot be decoded"),
        ({"observation": seen(image=bomb(9000))}, "an image of 9000 x 9000 pixels; at most 16777216"),
        ({"observation": seen(image=bomb(60_000))}, "an image of 60000 x 60000 pixels; at most"),
    ],
)
def test_a_step_that_cannot_be_learned_from_is_named(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(TrajectoryError, match=f"^emulator phone, task open, step 1: .*{reason}"):
        GUARD.check(episode(step(), step(**changed), LAST), TICKET, "w1")


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": ()},
        {"steps": (step(),)},
        {"steps": (step(), step(), step(), LAST)},
        {"worker": "w2"},
        {"final_observation": seen(vector=np.ones(3, np.float32))},
        *({"ticket": replace(TICKET, **other)} for other in ({"index": 2}, {"seed": 8})),
        *({"ticket": replace(TICKET, policy_version=version)} for version in (3, 5)),
        *({"ticket": replace(TICKET, **other)} for other in ({"iteration": 5}, {"purpose": "evaluate"})),
        *({"ticket": replace(TICKET, task=other)} for other in (Task("shut", "open it"), Task("open", "give it away"))),
    ],
)
def test_an_episode_that_is_not_the_tickets_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(TrajectoryError):
        GUARD.check(episode(**changed), TICKET, "w1")


def test_an_image_of_unknown_size_is_bounded() -> None:
    """Of an emulator that says nothing of its images, and of one that leaves their size open."""
    for spec in (None, EmulatorSpec(DiscreteActions(3), image_size=(0, 0))):
        with pytest.raises(TrajectoryError, match="16777216 are allowed"):
            EpisodeGuard(spec=spec).check(episode(step(observation=seen(image=bomb(9000))), LAST), TICKET, "w1")


def test_valid_alone_fatal_together_rewards_have_a_sum() -> None:
    with pytest.raises(TrajectoryError, match="task open: rewards of 1.2e\\+06 in sum; at most 1e\\+06 is allowed"):
        GUARD.check(episode(step(reward=6e5), step(reward=-6e5), step(reward=0.0, terminated=True)), TICKET, "w1")


def test_ten_thousand_black_screens_are_refused_before_one_is_decoded() -> None:
    """Each is a valid picture of a telephone's screen; to decode them all took a host a minute."""
    rows = zlib.compress(bytes(2400 * (1 + 3 * 1080)))
    plain = SIGNATURE + header(1080, 2400) + chunk(b"IDAT", rows)
    screens = [plain + chunk(b"tIME", number.to_bytes(7, "big")) + chunk(b"IEND", b"") for number in range(1000)]
    guard = EpisodeGuard("phone", EmulatorSpec(DiscreteActions(3), image_size=(2400, 1080)), None)
    steps = [step(observation=Observation("", one), terminated=one == screens[-1]) for one in screens]
    started = time.thread_time()
    with pytest.raises(TrajectoryError, match="task open: 1000 screenshots of 2592000000 pixels in sum; at most"):
        guard.check(episode(*steps, final_observation=steps[0].observation), TICKET, "w1")
    assert time.thread_time() - started < 5  # to decode them takes ten times as long


def test_what_the_spec_does_not_have_is_refused() -> None:
    for spec in (EmulatorSpec(DiscreteActions(3), vector_size=2), EmulatorSpec(DiscreteActions(3), vector_size=0)):
        guard = EpisodeGuard("numbers", spec, 3, GenericAgentSettings().check_action)
        vector = np.ones(2, np.float32) if spec.vector_size else None
        blind = seen(image=None, vector=vector)
        guard.check(episode(step(observation=blind, terminated=True), final_observation=blind), TICKET, "w1")
        for unasked in (seen(vector=vector), seen(image=None, vector=np.ones(3, np.float32))):
            with pytest.raises(TrajectoryError, match="the emulator's spec says"):
                guard.check(episode(step(observation=unasked), LAST), TICKET, "w1")


def test_a_density_may_be_above_one_and_a_probability_may_not() -> None:
    tap = BoxActions((0.0,), (1.0,))
    for actions, passes in ((tap, True), (DiscreteActions(3), False), (ProductActions((DiscreteActions(3),)), False)):
        guard = EpisodeGuard(spec=EmulatorSpec(actions))
        one = episode(step(log_prob=4.0, terminated=True, action=[0.5]))
        if passes:
            guard.check(one, TICKET, "w1")
            continue
        with pytest.raises(TrajectoryError, match="the log-probability of the action is 4"):
            guard.check(one, TICKET, "w1")


def loads(image: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(image)) as found:
            found.load()
    except Exception:
        return False
    return True


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1"])
def test_what_passes_without_pillow_is_what_pillow_decodes(mode: str) -> None:
    """Of pictures with a bit changed, cut short, or with chunks left out, none passes that Pillow refuses."""
    whole = encoded(Image.frombytes("RGB", (20, 9), np.random.default_rng(5).bytes(540)).convert(mode))
    assert _is_plain_png(whole, (9, 20)) == (mode in ("L", "LA", "RGB", "RGBA"))
    assert not _is_plain_png(whole, (20, 9))
    for place in range(16, len(whole) - 12):
        for bit in (0, 3, 7):
            changed = whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :]
            assert not _is_plain_png(changed, None) or loads(changed), (place, bit)
        assert not _is_plain_png(whole[:place] + whole[-12:], None)


def test_a_jpeg_that_is_decoded_again_and_again_is_refused() -> None:
    whole = encoded(Image.new("RGB", (4, 6), (90, 0, 0)), "JPEG", progressive=True)
    last = whole[whole.rfind(b"\xff\xda") : -2]
    GUARD.check(episode(step(observation=seen(image=whole)), LAST), TICKET, "w1")
    with pytest.raises(TrajectoryError, match=r"step 0: a JPEG of 10\d\d scans; at most 32 are allowed"):
        image = whole[:-2] + 1000 * last + whole[-2:]
        GUARD.check(episode(step(observation=seen(image=image)), LAST), TICKET, "w1")


def test_an_agent_that_may_not_know_its_probabilities_says_nan_and_not_inf() -> None:
    guard = replace(GUARD, knows_log_prob=EndpointSettings().learns)
    guard.check(episode(step(log_prob=math.nan), LAST), TICKET, "w1")
    with pytest.raises(TrajectoryError, match="log-probability"):
        guard.check(episode(step(log_prob=math.inf), LAST), TICKET, "w1")


def test_of_actions_that_only_their_author_knows_it_is_checked_that_they_are_json() -> None:
    guard = replace(GUARD, check_action=None)
    guard.check(episode(step(action={"my": ["own"]}), LAST), TICKET, "w1")
    for action in ({"my": math.nan}, {1, 2}, np.int64(1)):
        with pytest.raises(TrajectoryError, match="outside of the action space"):
            guard.check(episode(step(action=action), LAST), TICKET, "w1")


TAP = {"type": "tap", "x": 0.5, "y": 0.5}


@pytest.mark.parametrize(
    ("agent", "space", "inside", "outside"),
    [
        (
            GenericAgentSettings(),
            BoxActions((-1.0, 0.0), (1.0, math.inf)),
            [0, 5.5],
            [[0.5], [0.5, math.inf], [True, 1]],
        ),
        (
            DeviceAgentSettings(),
            DeviceActions(),
            TAP,
            [{**TAP, "x": 2}, {"type": "wait"}, {"type": "type", "text": "a"}],
        ),
        (DeviceAgentSettings(), DeviceActions(), {"type": "type", "text": "hi"}, [{"type": []}, [], {"type": "swipe"}]),
        (VlmSettings(model="m"), DeviceActions(), {**TAP, "tokens": [1], "said": "tap"}, [TAP, {**TAP, "tokens": []}]),
        (VlmSettings(model="m"), DeviceActions(), {**TAP, "tokens": [1]}, [{**TAP, "tokens": [1] * 65}]),
        (AutoUiSettings(model="m"), DeviceActions(), {**TAP, "tokens": [1]}, [{**TAP, "tokens": ["1"]}]),
        (EndpointSettings(model="m"), DeviceActions(), {**TAP, "said": "tap"}, [{**TAP, "more": 1}]),
    ],
)
def test_every_agent_knows_which_actions_it_cannot_have_chosen(
    agent: AgentPlugin, space: Any, inside: Any, outside: list[Any]
) -> None:
    spec, observation = EmulatorSpec(space), Observation('type "hi"')
    agent.check_action(spec, observation, inside)
    for action in outside:
        with pytest.raises(ActionError):
            agent.check_action(spec, observation, action)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (picture(), None),
        (picture(form="jpeg"), None),
        (picture(40, 60), "an image of 60 x 40 pixels"),
        (bomb(5_000), "an image of 5000 x 5000 pixels"),
        (SIGNATURE + header(4, 6) + header(5_000, 5_000) + bomb(4)[33:], "an image of 5000 x 5000"),
        (SIGNATURE, "cannot be decoded"),
        (SIGNATURE + header(4, 6)[:-4], "cannot be decoded"),
    ],
    ids=["png", "jpeg", "other size", "bomb", "two headers", "no header", "half a header"],
)
def test_a_policy_is_asked_only_about_pictures_of_the_emulators_size(image: bytes, told: str | None) -> None:
    if told is None:
        GUARD.check_question(seen(image=image))
        return
    with pytest.raises(TrajectoryError, match=told):
        GUARD.check_question(seen(image=image))
