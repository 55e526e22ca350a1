"""PPO on a walk along a line: rollouts without gradients, then epochs of clipped updates."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(13)
actor, critic = (nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, out)) for out in (2, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3, eps=1e-5)
for update in range(3):
    states, actions, log_probs, rewards = [], [], [], []
    position = torch.zeros(1)
    with torch.no_grad():
        for _ in range(32):
            policy = Categorical(logits=actor(position))
            action = policy.sample()
            states.append(position)
            actions.append(action)
            log_probs.append(policy.log_prob(action))
            position = position + (0.1 if action.item() else -0.1)
            rewards.append(-position.abs())
    states, actions, log_probs = torch.stack(states), torch.stack(actions), torch.stack(log_probs)
    returns = torch.cat(rewards).flip(0).cumsum(0).flip(0)
    for _ in range(2):
        for index in torch.randperm(32).split(8):
            policy = Categorical(logits=actor(states[index]))
            ratio = (policy.log_prob(actions[index]) - log_probs[index]).exp()
            value = critic(states[index]).squeeze(1)
            advantage = (returns[index] - value).detach()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -gain + 0.5 * (returns[index] - value).square().mean() - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()
    print(f"update={update} return={returns[0].item():.4f} loss={loss.item():.6f}")
torch.save({"actor": actor.state_dict(), "critic": critic.state_dict()}, "model.pt")
