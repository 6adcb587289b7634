#!/usr/bin/env python3
"""Trains the embedded model, `inflight-demo`, from nothing, on text that `tools/demo_corpus` writes.

    python3 tools/train_demo_model.py --output /tmp/measured --minutes 5            # to measure
    python3 tools/train_demo_model.py --output python/inflight/demo --minutes 5 --everything   # to release

The released weights were made in two runs: the second, `--begin-with` the first one's checkpoint with
`--minutes 4 --learning-rate 1e-3 --conversations 1000000 --everything`, had the window of 1,024 tokens and
conversations behind long texts.

Needs torch, numpy, tokenizers and safetensors. On an H200 it takes the given minutes and about one more for
the corpus and the evaluation. `--device cpu --minutes 1 --conversations 4000 --held-out 5` tries all of it on
any machine, with a model that babbles. The corpus and the order of batches follow from the seed; with
`--steps` in place of `--minutes` the learning rate does as well, and runs differ only by the GPU's rounding.

Prints the share of exactly right answers to phrasings kept out of training, and sample conversations. Three
minutes gave: concepts, facts and unknown topics 100 %, word tasks 98 %, Inflight 84 %, small talk 76 %, where
a phrasing kept out is often a question of its own. For a release nothing is kept out (`--everything`), and
the printed share then only says what was learned by heart.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the corpus is already made by one process a core

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from demo_corpus import Author, conversation, plain_text
from demo_model import checkpoint, encoding, evaluation
from demo_model.network import Mistral, Shape

SHARD = 4000  # conversations made by one task
WARM_UP = 200  # steps
PLAIN_SHARE = 0.03  # texts without a conversation


def documents(seed: int, count: int, everything: bool) -> list[list[encoding.Segment]]:
    """`count` documents of the training mix."""
    author = Author(seed, everything=everything)
    made = []
    for _ in range(count):
        if author.maybe(PLAIN_SHARE):
            made.append([(encoding.BEGIN, 0), (plain_text(author) + encoding.END, 100)])
        else:
            made.append(encoding.segments(conversation(author)))
    return made


def shard(serialized: str, everything: bool, seed: int) -> dict[int, encoding.Rows]:
    """One task of `make_rows`: a part of the corpus, packed."""
    return encoding.pack(documents(seed, SHARD, everything), Tokenizer.from_str(serialized))


def make_rows(
    tokenizer: Tokenizer, seed: int, conversations: int, everything: bool
) -> dict[int, encoding.Rows]:
    """The packed corpus, made on all cores; shard seeds follow from `seed`."""
    seeds = [seed * 1_000_003 + 1 + index for index in range(max(1, conversations // SHARD))]
    with multiprocessing.get_context("spawn").Pool(min(len(seeds), os.cpu_count() or 1)) as pool:
        shards = list(pool.imap(partial(shard, tokenizer.to_str(), everything), seeds))
    return {
        length: encoding.Rows(
            *(
                np.concatenate([getattr(part[length], name) for part in shards])
                for name in ("ids", "weights", "documents")
            )
        )
        for length in encoding.ROW_LENGTHS
    }


def loss_of(model: Mistral, ids: torch.Tensor, weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Weighted cross entropy of the next token; attention stays inside each document."""
    visible = model.visible(ids.shape[1], ids.device)
    mask = ((numbers[:, :, None] == numbers[:, None, :]) & visible)[:, None]
    logits = model(ids, mask)[:, :-1]
    # A token counts only where the one before it belongs to the same document.
    weight = weights[:, 1:].float() * (numbers[:, 1:] == numbers[:, :-1])
    each = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), ids[:, 1:].reshape(-1), reduction="none"
    )
    return (each * weight.reshape(-1)).sum() / weight.sum().clamp(min=1)


def train(
    model: Mistral, rows: dict[int, encoding.Rows], options: argparse.Namespace, device: torch.device
) -> None:
    """AdamW with warm-up and cosine; the learning rate follows the share of time or steps that has passed."""
    tables = {
        length: [torch.from_numpy(getattr(part, name)).to(device) for name in ("ids", "weights", "documents")]
        for length, part in rows.items()
        if len(part.ids)
    }
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, lr=options.learning_rate, betas=(0.9, 0.98), fused=device.type == "cuda"
    )
    choose = np.random.default_rng(options.seed)
    lengths = list(tables)
    share = np.array([tables[length][0].numel() for length in lengths], dtype=float)
    share /= share.sum()
    compiled = torch.compile(loss_of) if options.compile else loss_of
    began, step, progress = time.monotonic(), 0, 0.0
    order: dict[int, np.ndarray] = {length: np.empty(0, dtype=np.int64) for length in lengths}
    while progress < 1:
        length = lengths[int(choose.choice(len(lengths), p=share))]
        batch = max(1, options.batch_tokens // length)
        if len(order[length]) < batch:
            order[length] = choose.permutation(tables[length][0].shape[0])
        picked, order[length] = torch.from_numpy(order[length][:batch]).to(device), order[length][batch:]
        ids, weights, numbers = (table[picked] for table in tables[length])
        rate = (
            options.learning_rate
            * min(1.0, (step + 1) / WARM_UP)
            * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = compiled(model, ids.long(), weights, numbers)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        seconds = time.monotonic() - began
        progress = step / options.steps if options.steps else seconds / (60 * options.minutes)
        if step % 500 == 0 or step in (1, 10, 100):
            print(
                f"step {step}  {progress:6.1%}  loss {loss.item():.4f}  rate {rate:.1e}  "
                f"{step * options.batch_tokens / seconds / 1e6:.2f} M tokens/s",
                flush=True,
            )
    print(f"trained {step} steps in {time.monotonic() - began:.0f} s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="directory for the checkpoint")
    parser.add_argument(
        "--begin-with", type=Path, help="checkpoint whose tokenizer and weights the training begins with"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="time for the training itself")
    parser.add_argument("--steps", type=int, help="number of steps, in place of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--conversations", type=int, default=1_400_000)
    parser.add_argument("--vocabulary", type=int, default=3072)
    parser.add_argument("--batch-tokens", type=int, default=32_768)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--held-out", type=int, default=300, help="questions a subject in the evaluation")
    parser.add_argument(
        "--everything", action="store_true", help="train on the held-out phrasings too, as for a release"
    )
    parser.add_argument("--compile", action="store_true", help="compile the step")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    began = time.monotonic()
    if options.begin_with:
        tokenizer = Tokenizer.from_file(str(options.begin_with / "tokenizer.json"))
    else:
        sample = documents(options.seed + 17, min(60_000, options.conversations), options.everything)
        texts = (text for document in sample for text, weight in document if weight)
        tokenizer = encoding.train_tokenizer(texts, options.vocabulary)
    print(f"tokenizer: {tokenizer.get_vocab_size()} tokens, {time.monotonic() - began:.0f} s", flush=True)
    rows = make_rows(tokenizer, options.seed, options.conversations, options.everything)
    tokens = sum(int((part.documents > 0).sum()) for part in rows.values())
    print(f"corpus: {tokens / 1e6:.1f} M tokens, {time.monotonic() - began:.0f} s", flush=True)
    model = Mistral(Shape(tokenizer.get_vocab_size())).to(device)
    if options.begin_with:
        checkpoint.read(options.begin_with, model)
    print(f"model: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    train(model, rows, options, device)
    checkpoint.write(options.output, model, tokenizer)
    # What is measured is what was written: the weights rounded to bfloat16, computed in float32.
    model.load_state_dict(
        {name: tensor.to(torch.bfloat16).float() for name, tensor in model.state_dict().items()}
    )
    model.eval()
    evaluation.report(model, tokenizer, options.held_out)


if __name__ == "__main__":
    main()
