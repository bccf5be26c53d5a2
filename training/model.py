"""A Llama in plain PyTorch, with Hugging Face's names, and its export with 8-bit weights."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Config:
    vocab_size: int = 1536
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    max_position_embeddings: int = 512
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


def rope_tables(config: Config) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[positions, head_dim]`, the two halves of a head paired as Hugging Face pairs them."""
    exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
    angles = torch.outer(torch.arange(config.max_position_embeddings), config.rope_theta**-exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys turned by their position."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output, and the first head's scores `[rows, length, length]` before any mask."""
        rows, length, _ = x.shape
        q, k, v = (
            p(x).view(rows, length, -1, self.dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        scores = q[:, 0] @ k[:, 0].transpose(1, 2) / self.dim**0.5
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1)), scores


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        mixed, scores = self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), scores


class Llama(nn.Module):
    """Logits `[rows, length, vocab]` for token ids `[rows, length]`; the output matrix is the embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._start()

    def _start(self) -> None:
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                is_last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.0 if is_last else 0.02 if "embed" in name else weight.shape[1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.watched(tokens)[0]

    def watched(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The logits, and the scores of the first head of every second layer from the third on."""
        length = tokens.shape[1]
        x, seen = self.embed_tokens(tokens), []
        for i, layer in enumerate(self.layers):
            x, scores = layer(x, self.cos[:length], self.sin[:length])
            if i >= 2 and i % 2 == 0:
                seen.append(scores)
        return self.norm(x) @ self.embed_tokens.weight.T, seen


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix as int8 and one float32 scale per row, so that `int8 * scale` is nearest to it."""
    scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12)
    return torch.round(weight / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


def rounded(model: Llama) -> Llama:
    """A copy of the model whose matrices went through int8 and back."""
    copy = Llama(model.config)
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in copy.parameters():
            if weight.ndim == 2:
                values, scale = quantize(weight)
                weight.copy_(values.float() * scale[:, None])
    return copy


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of an exported folder under this module's names, in float32."""
    stored = load_file(folder / "model.safetensors")
    scaled = {
        name: value.float() * stored[f"{name}_scale"][:, None] if value.ndim == 2 else value
        for name, value in stored.items()
        if not name.endswith("_scale")
    }
    return {name.removeprefix("model."): value for name, value in scaled.items()}


def export(model: Llama, folder: Path, bos: int, eos: int) -> None:
    """Write `config.json` and `model.safetensors` (int8 matrices with `NAME_scale`, float32 norms) into the folder."""
    tensors: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        if weight.ndim == 1:
            tensors[f"model.{name}"] = weight.float().contiguous()
        else:
            tensors[f"model.{name}"], tensors[f"model.{name}_scale"] = quantize(weight)
    save_file(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").chmod(0o644)
    (folder / "model.safetensors.part").rename(folder / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **asdict(model.config)} | {
        "head_dim": model.config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
