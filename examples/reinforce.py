"""REINFORCE with a torch module of your own, which learns the demo phone on two workers behind SSH servers.

    python examples/reinforce.py

In place of ``Fleet.dry_run(2, …)``, ``Fleet(["10.0.0.2", "10.0.0.3"], …)`` takes machines of yours.
"""

import io

import torch
from PIL import Image
from torch.distributions import Categorical

from digirl_dist import Decision, Fleet

TAPS = [{"type": "tap", "x": (2 * x + 1) / 6, "y": (2 * y + 1) / 18} for y in range(9) for x in range(3)]

with Fleet.dry_run(2, bsize=4, emulator="phone", save_path="rollouts/reinforce") as fleet:
    words = sorted({word for task in fleet.tasks for word in task.instruction.split()})
    net = torch.nn.Sequential(torch.nn.Linear(768, 128), torch.nn.ReLU(), torch.nn.Linear(128, len(words) * len(TAPS)))
    adam = torch.optim.Adam(net.parameters(), 5e-4)

    def policy(observations):
        screens = [Image.open(io.BytesIO(seen.image)).convert("L").resize((24, 32)) for seen in observations]
        heads = net(torch.tensor([[*screen.tobytes()] for screen in screens]) / 128 - 1).unflatten(1, (len(words), -1))
        named = torch.tensor([[word in seen.text.split() for word in words] for seen in observations])
        return Categorical(logits=(heads * named[..., None]).sum(1))

    def act(observations):
        chosen = policy(observations)
        taps = chosen.sample()
        return [Decision(TAPS[tap], p) for tap, p in zip(taps.tolist(), chosen.log_prob(taps).tolist(), strict=True)]

    for group in filter(len, fleet.stream(fleet.tasks * 32, act=act, group_size=8, key="reinforce")):
        returns = torch.tensor([episode.reward for episode in group])
        advantages = (returns - returns.mean()) / (returns.std(correction=0) + 1e-4)
        steps = [(step, each) for episode, each in zip(group, advantages, strict=True) for step in episode.steps]
        taken = torch.tensor([TAPS.index(step.action) for step, _ in steps])
        chosen = policy([step.observation for step, _ in steps])
        gains = chosen.log_prob(taken) * torch.stack([advantage for _, advantage in steps])
        adam.zero_grad()
        (-gains - 0.05 * chosen.entropy()).mean().backward()
        adam.step()
        fleet.update(act)
