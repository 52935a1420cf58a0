"""The world-action model: one causal transformer that denoises future pictures and actions together.

A sequence is cut into blocks. Block i holds a few future pictures, the actions that lead to them, and one state. Its
noisy pictures and actions see the first clean picture, the clean pictures of earlier blocks, their own state and
themselves. The clean past and the states depend on nothing noisy, so their keys and values are computed once and the
noisy part runs on top: in training over all blocks at once, in a rollout over the next one.

Shape after DreamZero (github dreamzero0/dreamzero), whose backbone is Wan (github Wan-Video/Wan2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig

KeysValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Prediction:
    """`video` has the shape of the noisy pictures, `actions` that of the noisy actions."""

    video: Tensor
    actions: Tensor


@dataclass(frozen=True)
class Past:
    """The clean past, ready to be attended to: keys and values per layer, and whose they are.

    `block` is the block of each token (-1 is the first picture), `is_state` marks state tokens.
    """

    keys_values: list[KeysValues]
    block: Tensor
    is_state: Tensor


def sinusoid(position: Tensor, dim: int) -> Tensor:
    """Sinusoidal encoding of `position` (any shape) to `(..., dim)`; cosines first, periods up to 10,000."""
    half = dim // 2
    frequency = torch.exp(-math.log(10_000.0) * torch.arange(half, device=position.device) / half)
    angle = position.float()[..., None] * frequency
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


def rotary_angles(position: Tensor, dim: int) -> Tensor:
    """Angles `(n, dim / 2)` of a one-dimensional rotary embedding at `position` `(n,)`."""
    frequency = 10_000.0 ** (-torch.arange(0, dim, 2, device=position.device) / dim)
    return position.float()[:, None] * frequency


def rotary_angles_3d(frame: Tensor, row: Tensor, column: Tensor, dim: int) -> Tensor:
    """Angles `(n, dim / 2)` over time, height and width; each of the two spatial axes takes a third of `dim`."""
    space = 2 * (dim // 6)
    axes = (rotary_angles(frame, dim - 2 * space), rotary_angles(row, space), rotary_angles(column, space))
    return torch.cat(axes, dim=-1)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Apply rotary angles `(n, d / 2)` to `(b, n, heads, d)`; channels 2i and 2i + 1 are a pair."""
    cos, sin = angles.cos()[None, :, None].to(x.dtype), angles.sin()[None, :, None].to(x.dtype)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = nn.RMSNorm(dim, eps=1e-6), nn.RMSNorm(dim, eps=1e-6)

    def keys_values(self, x: Tensor, angles: Tensor) -> KeysValues:
        k = rotate(self.norm_k(self.k(x)).unflatten(-1, (self.heads, -1)), angles)
        return k.transpose(1, 2), self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, angles: Tensor, keys_values: KeysValues, mask: Tensor | None) -> Tensor:
        q = rotate(self.norm_q(self.q(x)).unflatten(-1, (self.heads, -1)), angles).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, *keys_values, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(-2))


class CrossAttention(nn.Module):
    """Attention to text tokens, plus attention to image tokens with keys and values of their own."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o, self.k_image, self.v_image = (nn.Linear(dim, dim) for _ in range(6))
        self.norm_q, self.norm_k, self.norm_k_image = (nn.RMSNorm(dim, eps=1e-6) for _ in range(3))

    def forward(self, x: Tensor, text: Tensor, image: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q = split(self.norm_q(self.q(x)))
        y = F.scaled_dot_product_attention(q, split(self.norm_k(self.k(text))), split(self.v(text)))
        seen = F.scaled_dot_product_attention(
            q, split(self.norm_k_image(self.k_image(image))), split(self.v_image(image))
        )
        return self.o((y + seen).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """A transformer block with one modulation (shift, scale, gate, twice) per token."""

    def __init__(self, config: ModelConfig, *, last: bool) -> None:
        super().__init__()
        dim = config.dim
        self.last = last
        self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.self_attention = SelfAttention(dim, config.heads)
        if config.text_dim:
            self.norm3 = nn.LayerNorm(dim, eps=1e-6)
            self.cross_attention = CrossAttention(dim, config.heads)
        self.ffn = nn.Sequential(
            nn.Linear(dim, config.ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(config.ffn_dim, dim)
        )
        self.modulation = nn.Parameter(torch.randn(6, dim) / dim**0.5)

    def advance(
        self,
        x: Tensor,
        time: Tensor,
        angles: Tensor,
        mask: Tensor | None,
        past: KeysValues | None,
        context: tuple[Tensor, Tensor] | None,
        *,
        keys_only: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        """One layer for tokens `x`, which see `past` and themselves; returns them and their own keys and values."""
        shift, scale, gate, shift2, scale2, gate2 = (self.modulation + time).unbind(-2)
        y = self.norm1(x) * (1 + scale) + shift
        own = self.self_attention.keys_values(y, angles)
        if keys_only:
            return x, own
        seen = own if past is None else (torch.cat([past[0], own[0]], dim=2), torch.cat([past[1], own[1]], dim=2))
        x = x + self.self_attention(y, angles, seen, mask) * gate
        if context is not None:
            x = x + self.cross_attention(self.norm3(x), *context)
        return x + self.ffn(self.norm2(x) * (1 + scale2) + shift2) * gate2, own

    def forward(
        self,
        past: Tensor,
        x: Tensor,
        past_time: Tensor,
        time: Tensor,
        past_angles: Tensor,
        angles: Tensor,
        past_mask: Tensor,
        mask: Tensor | None,
        context: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """The clean past and the noisy part through one layer, in one call: sharded weights are gathered once."""
        past, seen = self.advance(past, past_time, past_angles, past_mask, None, context, keys_only=self.last)
        x, _ = self.advance(x, time, angles, mask, seen, context)
        return past, x


class Embodied(nn.Module):
    """A linear layer with one weight per embodiment, as published; there is one embodiment."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight[0] + self.bias[0]


class ActionEncoder(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = Embodied(config.action_dim, config.dim)
        self.w2 = Embodied(2 * config.dim, config.dim)
        self.w3 = Embodied(config.dim, config.dim)

    def forward(self, actions: Tensor, noise_level: Tensor) -> Tensor:
        a = self.w1(actions)
        time = sinusoid(noise_level * 1000, a.shape[-1]).to(a.dtype)
        return self.w3(F.silu(self.w2(torch.cat([a, time], dim=-1))))


class Head(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(config.dim, config.latent_channels * math.prod(config.patch))
        self.modulation = nn.Parameter(torch.randn(2, config.dim) / config.dim**0.5)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale = (self.modulation + time[..., None, :]).unbind(-2)
        return self.linear(self.norm(x) * (1 + scale) + shift)


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Embodied(inputs, hidden), nn.ReLU(), Embodied(hidden, outputs))


class WorldActionModel(nn.Module):
    """See the module's docstring. Sizes: b samples, n blocks, f pictures and a actions per block.

    Pictures are `(b, channels, frames, height, width)`: `clean` holds `1 + (n - 1) f` frames, `noisy` the `n f` future
    ones, `height` and `width` of the latter divided by `future_scale`. `actions` is `(b, n a, action_dim)`, `states`
    `(b, n, state_dim)`, `noise_level` `(b, n)` in [0, 1]. `condition` has `condition_channels` for all clean frames and
    then all noisy ones. `text` is `(b, tokens, text_dim)`, `image` `(b, tokens, image_dim)`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.patch_embedding = nn.Conv3d(
            config.latent_channels + config.condition_channels, dim, kernel_size=config.patch, stride=config.patch
        )
        self.time_embedding = nn.Sequential(nn.Linear(config.frequency_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.state_encoder = _two_layers(config.state_dim, config.adapter_dim, dim)
        self.action_encoder = ActionEncoder(config)
        self.action_decoder = _two_layers(dim, config.adapter_dim, config.action_dim)
        if config.text_dim:
            self.text_embedding = nn.Sequential(
                nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
            )
            self.image_embedding = nn.Sequential(
                nn.LayerNorm(config.image_dim),
                nn.Linear(config.image_dim, config.image_dim),
                nn.GELU(),
                nn.Linear(config.image_dim, dim),
                nn.LayerNorm(dim),
            )
        self.blocks = nn.ModuleList(Block(config, last=i == config.layers - 1) for i in range(config.layers))
        self.head = Head(config)
        self.action_norm = nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)
        self._initialize()

    def _layers(self) -> list[Block]:
        return [layer for layer in self.blocks if isinstance(layer, Block)]

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                _zero(module.bias)
            if isinstance(module, nn.Conv3d):
                nn.init.xavier_uniform_(module.weight.flatten(1))
                _zero(module.bias)
        for name in ("time_embedding.0", "time_embedding.2"):
            nn.init.normal_(self.get_parameter(f"{name}.weight"), std=0.02)
        # the model starts as "nothing moves, and all of the noise is noise"
        nn.init.zeros_(self.head.linear.weight)
        nn.init.zeros_(self.get_parameter("action_decoder.2.weight"))

    def forward(
        self,
        clean: Tensor,
        noisy: Tensor,
        actions: Tensor,
        states: Tensor,
        noise_level: Tensor,
        condition: tuple[Tensor, Tensor] | None = None,
        text: Tensor | None = None,
        image: Tensor | None = None,
    ) -> Prediction:
        """All blocks at once, each from its own clean past: the pass that trains."""
        past_condition, noisy_condition = condition if condition is not None else (None, None)
        past, past_block, past_angles, is_state = self._past_tokens(clean, states, past_condition, first_block=-1)
        x, block, angles = self._noisy_tokens(noisy, actions, noise_level, noisy_condition, first_block=0)
        past_time, time, head_time = self._time(block, noise_level)
        context = self._context(text, image)
        past_mask = _past_mask(past_block, is_state, past_block, is_state)
        mask = _noisy_mask(block, past_block, is_state)
        for layer in self._layers():
            past, x = layer(past, x, past_time, time, past_angles, angles, past_mask, mask, context)
        return self._read_out(x, noisy, actions, head_time)

    @torch.no_grad()
    def remember(
        self,
        clean: Tensor,
        states: Tensor,
        past: Past | None = None,
        condition: Tensor | None = None,
        text: Tensor | None = None,
        image: Tensor | None = None,
    ) -> Past:
        """Encode clean pictures and the next block's state, on top of what is remembered, for `denoise`.

        The first call takes the first picture and the first block's state; each later one a block of observed
        pictures and the state after it.
        """
        first_block = -1 if past is None else int(past.block[~past.is_state].max()) + 1
        x, block, angles, is_state = self._past_tokens(clean, states, condition, first_block=first_block)
        time, _, _ = self._time(block, torch.zeros(clean.shape[0], 1, device=clean.device))
        context = self._context(text, image)
        if past is not None:
            block_all, state_all = torch.cat([past.block, block]), torch.cat([past.is_state, is_state])
        else:
            block_all, state_all = block, is_state
        mask = _past_mask(block, is_state, block_all, state_all)
        remembered: list[KeysValues] = []
        for i, layer in enumerate(self._layers()):
            before = None if past is None else past.keys_values[i]
            x, own = layer.advance(x, time, angles, mask, before, context, keys_only=layer.last)
            if before is not None:
                own = (torch.cat([before[0], own[0]], dim=2), torch.cat([before[1], own[1]], dim=2))
            remembered.append(own)
        return Past(remembered, block_all, state_all)

    @torch.no_grad()
    def denoise(
        self,
        noisy: Tensor,
        actions: Tensor,
        noise_level: Tensor,
        past: Past,
        condition: Tensor | None = None,
        text: Tensor | None = None,
        image: Tensor | None = None,
    ) -> Prediction:
        """The next block's pictures and actions on top of the remembered past; `noise_level` is `(b, 1)`."""
        block_index = int(past.block[~past.is_state].max()) + 1
        x, block, angles = self._noisy_tokens(noisy, actions, noise_level, condition, first_block=block_index)
        _, time, head_time = self._time(block - block_index, noise_level)
        mask = _noisy_mask(block, past.block, past.is_state)
        context = self._context(text, image)
        for layer, seen in zip(self._layers(), past.keys_values, strict=True):
            x, _ = layer.advance(x, time, angles, mask, seen, context)
        return self._read_out(x, noisy, actions, head_time)

    def _past_tokens(
        self, clean: Tensor, states: Tensor, condition: Tensor | None, *, first_block: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        per_block, head_dim = self.config.frames_per_block, self.config.dim // self.config.heads
        first_frame = 0 if first_block < 0 else 1 + first_block * per_block
        x, frame, angles = self._embed_pictures(clean, condition, first_frame, scale=1)
        block = torch.div(frame - 1, per_block, rounding_mode="floor")
        # the state of block i stands where its actions begin
        state_block = torch.arange(states.shape[1], device=clean.device) + (first_block + 1)
        state_angles = rotary_angles(state_block.float(), head_dim)
        tokens = torch.cat([x, self.state_encoder(states)], dim=1)
        is_state = torch.cat(
            [torch.zeros_like(block, dtype=torch.bool), torch.ones_like(state_block, dtype=torch.bool)]
        )
        return tokens, torch.cat([block, state_block]), torch.cat([angles, state_angles]), is_state

    def _noisy_tokens(
        self, noisy: Tensor, actions: Tensor, noise_level: Tensor, condition: Tensor | None, *, first_block: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        first_frame = 1 + first_block * config.frames_per_block
        x, frame, angles = self._embed_pictures(noisy, condition, first_frame, scale=config.future_scale)
        block = torch.div(frame - 1, config.frames_per_block, rounding_mode="floor")
        step = torch.arange(actions.shape[1], device=noisy.device) + first_block * config.actions_per_block
        action_block = torch.div(step, config.actions_per_block, rounding_mode="floor")
        action_angles = rotary_angles(step.float(), config.dim // config.heads)
        encoded = self.action_encoder(actions, noise_level[:, action_block - first_block])
        return torch.cat([x, encoded], dim=1), torch.cat([block, action_block]), torch.cat([angles, action_angles])

    def _embed_pictures(
        self, pictures: Tensor, condition: Tensor | None, first_frame: int, *, scale: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        if condition is not None:
            pictures = torch.cat([pictures, condition], dim=1)
        grid = self.patch_embedding(pictures)
        _, _, frames, rows, columns = grid.shape
        device = pictures.device
        frame, row, column = torch.meshgrid(
            torch.arange(frames, device=device).float() + first_frame,
            # a patch of a smaller picture covers `scale` patches of a full one: it stands in their middle
            (torch.arange(rows, device=device) + 0.5) * scale - 0.5,
            (torch.arange(columns, device=device) + 0.5) * scale - 0.5,
            indexing="ij",
        )
        angles = rotary_angles_3d(
            frame.flatten(), row.flatten(), column.flatten(), self.config.dim // self.config.heads
        )
        return grid.flatten(2).transpose(1, 2), frame.flatten().long(), angles

    def _time(self, block: Tensor, noise_level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Modulation of clean tokens `(1, 1, 6, dim)` and of noisy tokens `(b, n, 6, dim)`, and the head's."""
        config = self.config
        none = torch.zeros(1, 1, device=block.device)
        zero = self.time_embedding(sinusoid(none, config.frequency_dim))
        level = self.time_embedding(sinusoid(noise_level * 1000, config.frequency_dim))
        clean = self.time_projection(zero).unflatten(-1, (6, config.dim))
        noisy = self.time_projection(level).unflatten(-1, (6, config.dim))
        index = block.clamp(0, noise_level.shape[1] - 1)
        return clean, noisy[:, index], level[:, index]

    def _context(self, text: Tensor | None, image: Tensor | None) -> tuple[Tensor, Tensor] | None:
        if not self.config.text_dim:
            return None
        if text is None or image is None:
            raise ValueError("This preset sees text and image tokens, and none were given: pass the encoders' outputs")
        return self.text_embedding(text), self.image_embedding(image)

    def _read_out(self, x: Tensor, noisy: Tensor, actions: Tensor, head_time: Tensor) -> Prediction:
        count = x.shape[1] - actions.shape[1]
        video = self.head(x[:, :count], head_time[:, :count])
        t, h, w = self.config.patch
        b, _, frames, height, width = noisy.shape
        video = video.view(b, frames // t, height // h, width // w, t, h, w, self.config.latent_channels)
        video = video.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(b, -1, frames, height, width)
        return Prediction(video, self.action_decoder(self.action_norm(x[:, count:])))


def _past_mask(block: Tensor, is_state: Tensor, key_block: Tensor, key_is_state: Tensor) -> Tensor:
    """Who sees whom in the clean past: pictures see pictures up to their own block, a state sees itself."""
    pictures = ~is_state[:, None] & ~key_is_state[None] & (key_block[None] <= block[:, None])
    states = is_state[:, None] & key_is_state[None] & (key_block[None] == block[:, None])
    return pictures | states


def _noisy_mask(block: Tensor, past_block: Tensor, past_is_state: Tensor) -> Tensor | None:
    """What noisy tokens see: clean pictures before their block, their block's state, their own noisy block."""
    pictures = ~past_is_state[None] & (past_block[None] < block[:, None])
    states = past_is_state[None] & (past_block[None] == block[:, None])
    own = block[None] == block[:, None]
    mask = torch.cat([pictures | states, own], dim=1)
    return None if bool(mask.all()) else mask


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)


def count_parameters(config: ModelConfig) -> int:
    """Parameters of a model of this shape, counted on the meta device: nothing is allocated."""
    with torch.device("meta"):
        return sum(p.numel() for p in WorldActionModel(config).parameters())
