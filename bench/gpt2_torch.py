"""Times training steps of GPT-2 124M in compiled PyTorch and bf16, for tools/gpu.

The script prints a JSON object when it is ready. It then reads a number N per line, runs N steps,
and prints their mean time in seconds. 0 ends the script. If the batch does not fit on the GPU, the
script halves it.
"""
import argparse
import json
import sys
import time

parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda", help="cuda or cpu; default: %(default)s")
parser.add_argument("--small", action="store_true",
                    help="use a tiny model, as a smoke test; default: 124M parameters")
OPTIONS = parser.parse_args()   # --help does not require PyTorch

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

VOCAB = 50257


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, position, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, position, 3, self.heads, width // self.heads)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, position, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocab, positions, width, layers, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]).float(),
                               ids[:, 1:].reshape(-1))


def training(device, batch, small):
    torch.manual_seed(0)
    vocab, positions, sizes = (64, 16, (16, 2, 2)) if small else (VOCAB, 1024, (768, 12, 12))
    model = Gpt2(vocab, positions, *sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    compiled = torch.compile(model)
    ids = torch.randint(0, vocab, (batch, positions), device=device)

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, batch * positions


def seconds(step, times, device):
    """Returns the seconds of one step, by the clock of the GPU, else of the host."""
    if device != "cuda":
        began = time.perf_counter()
        for _ in range(times):
            step()
        return (time.perf_counter() - began) / times
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def warm(device, batch, small):
    while True:
        try:
            step, tokens = training(device, batch, small)
            for _ in range(3):
                seconds(step, 1, device)
            return step, tokens, batch
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
        step, batch = None, batch // 2           # no frame holds the arrays any more
        torch.compiler.reset()                   # else the next is compiled for any batch
        torch.cuda.empty_cache()


def main():
    torch.set_float32_matmul_precision("high")
    step, tokens, batch = warm(OPTIONS.device, 2 if OPTIONS.small else 64, OPTIONS.small)
    print(json.dumps({"ready": f"torch {torch.__version__}, B={batch}", "tokens": tokens}),
          flush=True)
    for line in sys.stdin:
        if int(line) <= 0:
            break
        print(json.dumps({"seconds": seconds(step, int(line), OPTIONS.device)}), flush=True)


if __name__ == "__main__":
    main()
