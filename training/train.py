"""Train the bundled model on the corpus and write its folder: `python training/train.py --minutes 50 --out FOLDER`."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from corpus import documents
from model import Config, Llama, export, read_weights, rounded
from tokenizer import BOS, EOS, id_of, save, train_tokenizer
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

TRAIN_SEED, VALID_SEED, TOKENIZER_SEED = 1, 2, 0


def rows(tokenizer: Tokenizer, seed: int, length: int) -> Iterator[Tensor]:
    """Rows of `length + 1` tokens; each begins with a whole document, so position 0 is always `<s>`."""
    bos, eos = id_of(tokenizer, BOS), id_of(tokenizer, EOS)
    row: list[int] = []
    for text in documents(seed):
        row += [bos, *tokenizer.encode(text, add_special_tokens=False).ids, eos]
        if len(row) > length:
            yield torch.tensor(row[: length + 1])
            row = []


def batches(source: Iterator[Tensor], size: int) -> Iterator[Tensor]:
    while True:
        yield torch.stack([next(source) for _ in range(size)])


def loss_of(model: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """Mean cross-entropy per token, in nats."""
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def copy_loss(scores: list[Tensor], batch: Tensor, bos: int) -> Tensor:
    """How far the watched heads are from looking at earlier places of the next token in the same document.

    Small models find out late that names are to be copied from the text before; looking at the right place is the
    hard half, so it is taught directly. Tokens above one in a hundred of the batch are left out: names are rarer.
    """
    inputs, targets = batch[:, :-1], batch[:, 1:]
    document = (inputs == bos).cumsum(dim=1)
    past = torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool).tril().expand(len(batch), -1, -1)
    here = past & (document[:, :, None] == document[:, None, :]) & (targets[:, :, None] == inputs[:, None, :])
    rare = torch.bincount(inputs.flatten(), minlength=int(batch.max()) + 1)[targets] <= inputs.numel() // 100
    asked = here.any(dim=-1) & rare
    losses = [
        all_scores[asked].masked_fill(~past[asked], -1e9).logsumexp(-1)
        - all_scores[asked].masked_fill(~here[asked], -1e9).logsumexp(-1)
        for all_scores in scores
    ]
    return torch.stack([loss.mean() for loss in losses]).mean()


@torch.no_grad()
def validate(model: Llama, tokenizer: Tokenizer) -> float:
    """Mean loss on 48 rows from a seed that training never uses."""
    source = batches(rows(tokenizer, VALID_SEED, 512), 8)
    return sum(loss_of(model, next(source)).item() for _ in range(6)) / 6


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with its singular values pushed towards 1: five Newton-Schulz steps, as in the Muon optimizer."""
    x = matrix / (matrix.norm() + 1e-7)
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon:
    """Momentum with orthogonal updates, for the matrices inside the layers (Jordan et al., 2024)."""

    def __init__(self, weights: list[Tensor], lr: float, momentum: float = 0.95):
        self.weights, self.momentum = weights, momentum
        self.averages = [torch.zeros_like(weight) for weight in weights]
        self.param_groups = [{"lr": lr}]

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        lr = self.param_groups[0]["lr"]
        for weight, average in zip(self.weights, self.averages, strict=True):
            assert weight.grad is not None
            average.lerp_(weight.grad, 1 - self.momentum)
            update = orthogonal(weight.grad.lerp(average, self.momentum))
            weight.mul_(1 - 0.05 * lr)
            weight.add_(update, alpha=-lr * max(1, weight.shape[0] / weight.shape[1]) ** 0.5)


def optimizers(model: Llama, muon_lr: float, adam_lr: float) -> list[Muon | torch.optim.Adam]:
    """Muon for the layers' matrices, Adam for the embedding and the norms."""
    inner = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
    outer = [w for name, w in model.named_parameters() if w.ndim == 1 or "embed" in name]
    return [Muon(list(inner), lr=muon_lr), torch.optim.Adam(outer, lr=adam_lr, betas=(0.9, 0.95))]


def rate(step: int, done: float) -> float:
    """The share of the learning rate to use: a short warm-up, flat for half of the run, then down to zero."""
    return min(1.0, (step + 1) / 40) * max(0.0, min(1.0, (1 - done) / 0.5))


def train(model: Llama, tokenizer: Tokenizer, options: argparse.Namespace) -> dict[str, float]:
    """What was measured, after training until `minutes` or `steps` end; the folder is written every 5 minutes."""
    steppers = optimizers(model, options.muon_lr, options.adam_lr)
    peaks = [group["lr"] for stepper in steppers for group in stepper.param_groups]
    source = batches(rows(tokenizer, options.seed, options.length), options.tokens // options.length)
    start, last_saved, step, seen = time.monotonic(), 0.0, 0, 0
    forward = torch.compile(model.watched) if options.compile else model.watched
    bos = id_of(tokenizer, BOS)
    while True:
        minutes = (time.monotonic() - start) / 60
        done = max(minutes / options.minutes, step / options.steps if options.steps else 0.0)
        if done >= 1:
            break
        for stepper, peak in zip(steppers, peaks, strict=True):
            stepper.param_groups[0]["lr"] = peak * rate(step, done)
        batch = next(source)
        logits, scores = forward(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        copying = copy_loss(scores, batch, bos)
        (loss + options.copy_weight * (1 - done) * copying).backward()
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        step, seen = step + 1, seen + batch[:, 1:].numel()
        if step % 20 == 0:
            losses = f"loss {loss.item():.4f}  copying {copying.item():.4f}"
            print(f"{minutes:6.2f} min  step {step}  {losses}  {seen / minutes / 60:.0f} tokens/s", flush=True)
        if minutes - last_saved >= 5:
            last_saved = minutes
            save_model(model, tokenizer, options.out)
            print(f"saved; validation loss {validate(model, tokenizer):.4f}", flush=True)
    return {"minutes": minutes, "steps": step, "tokens": seen, "tokens_per_s": seen / minutes / 60}


def save_model(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the whole folder: tokenizer, settings, weights."""
    save(tokenizer, folder)
    export(model, folder, id_of(tokenizer, BOS), id_of(tokenizer, EOS))


def read_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--minutes", type=float, default=50.0, help="stop after this long; the schedule follows it")
    parser.add_argument("--start", type=Path, help="go on from this finished folder")
    parser.add_argument("--seed", type=int, default=TRAIN_SEED, help="of the training texts; never 0 or 2")
    parser.add_argument(
        "--steps", type=int, default=0, help="stop after this many steps, if that comes first; 0 is off"
    )
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in a batch")
    parser.add_argument("--length", type=int, default=512, help="tokens in a row")
    parser.add_argument("--vocab-size", type=int, default=Config().vocab_size)
    parser.add_argument("--hidden", type=int, default=Config().hidden_size)
    parser.add_argument("--layers", type=int, default=Config().num_hidden_layers)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--copy-weight", type=float, default=0.3, help="of the copying loss at the start; it fades")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(TRAIN_SEED)
    tokenizer = (
        read_tokenizer(options.start) if options.start else train_tokenizer(options.vocab_size, 20_000, TOKENIZER_SEED)
    )
    config = Config(vocab_size=options.vocab_size, hidden_size=options.hidden, num_hidden_layers=options.layers)
    model = Llama(config)
    if options.start:
        model.load_state_dict(read_weights(options.start))
    print(f"{sum(w.numel() for w in model.parameters()):,} parameters", flush=True)
    measured = train(model, tokenizer, options)
    measured |= {"loss": validate(model, tokenizer), "loss_int8": validate(rounded(model), tokenizer)}
    save_model(model, tokenizer, options.out)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
