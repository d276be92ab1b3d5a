#!/usr/bin/env python3
"""Records models of transformers: weights, logits, losses, gradients and training runs.

Usage: tests/golden/models/make.py [NAME ...]

Requires torch, transformers and safetensors. Writes one folder for each model. README.md describes
the files.
"""
import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
import transformers

FOLDER = pathlib.Path(__file__).resolve().parent
BATCH, STEPS, BATCHES = 4, 20, 4
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}


def causal(positions):
    """Returns batches of token ids, which are their own labels."""
    def batches(config, generator):
        size = (BATCHES, BATCH, positions)
        return {"input_ids": torch.randint(config.vocab_size, size, generator=generator)}

    def call(model, batch):
        ids = batch["input_ids"].long()
        return model(input_ids=ids, labels=ids, use_cache=False)
    return batches, call


def speech(positions):
    """Returns batches of spectrograms and tokens. Some labels are ignored (-100).

    No label is the id of the padding, whose embedding torch does not train.
    """
    def batches(config, generator):
        frames = 2 * config.max_source_positions
        features = torch.randn(BATCHES, BATCH, config.num_mel_bins, frames, generator=generator)
        first = 1 + max(config.pad_token_id, config.decoder_start_token_id)
        labels = torch.randint(first, config.vocab_size, (BATCHES, BATCH, positions),
                               generator=generator)
        labels[:, 1, -3:] = -100
        shifted = labels.roll(1, -1)
        shifted[..., 0] = config.decoder_start_token_id
        ids = shifted.masked_fill(shifted == -100, config.pad_token_id)
        return {"input_features": features, "labels": labels, "decoder_input_ids": ids}

    def call(model, batch):
        return model(input_features=batch["input_features"], use_cache=False,
                     decoder_input_ids=batch["decoder_input_ids"].long(),
                     labels=batch["labels"].long())
    return batches, call


def images():
    """Returns batches of images and classes."""
    def batches(config, generator):
        size = (BATCHES, BATCH, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(size, generator=generator),
                "labels": torch.randint(config.num_labels, size[:2], generator=generator)}

    def call(model, batch):
        return model(pixel_values=batch["pixel_values"], labels=batch["labels"].long())
    return batches, call


ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LLAMA = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "bos_token_id": 0,
         "eos_token_id": 1, "pad_token_id": None}


def experts(**more):
    return {**LLAMA, "intermediate_size": 24, "rope_parameters": {"rope_type": "default",
                                                                  "rope_theta": 1e6}, **more}


# name -> class of the model, class and values of its configuration, and its batches
MODELS = {
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config,
             {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32,
              "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0,
              "eos_token_id": 1}, causal(16)),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig,
              {**LLAMA, "rope_parameters": ROPE}, causal(16)),
    "llama_tied": (transformers.LlamaForCausalLM, transformers.LlamaConfig,
                   {**LLAMA, "head_dim": 8, "num_key_value_heads": 4, "tie_word_embeddings": True,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, causal(16)),
    "mixtral": (transformers.MixtralForCausalLM, transformers.MixtralConfig,
                experts(num_local_experts=4, num_experts_per_tok=2, head_dim=8), causal(16)),
    "qwen3_moe": (transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig,
                  experts(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=12,
                          norm_topk_prob=True, head_dim=8), causal(16)),
    "vit": (transformers.ViTForImageClassification, transformers.ViTConfig,
            {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 64, "image_size": 16, "patch_size": 4, "num_channels": 3,
             "num_labels": 10}, images()),
    "whisper": (transformers.WhisperForConditionalGeneration, transformers.WhisperConfig,
                {"vocab_size": 99, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2,
                 "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                 "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 12,
                 "max_target_positions": 16, "pad_token_id": 2, "bos_token_id": 0,
                 "eos_token_id": 1, "decoder_start_token_id": 3, "suppress_tokens": None,
                 "begin_suppress_tokens": None}, speech(10)),
}


def randomize(model, generator):
    """Sets all parameters, so that none is at a special value such as 0 or 1."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            value = 0.2 * noise
        elif name.endswith("bias"):
            value = 0.1 * noise
        else:   # the weight of a norm
            value = 1 + 0.1 * noise
        parameter.data.copy_(value)


def named_gradients(model, folder):
    """Returns the gradients under the names and in the layout of the saved weights."""
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in frozen:
                parameter.copy_(parameter.grad)
        model.save_pretrained(folder)
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    found = safetensors.torch.load_file(folder / "model.safetensors")
    return {name: value for name, value in found.items() if name not in frozen}


def train(model, call, batches):
    """Returns the losses before each of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for step in range(STEPS):
        loss = call(model, {key: value[step % BATCHES] for key, value in batches.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def make(name, seed):
    model_class, config_class, values, (make_batches, call) = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    config = config_class(**values)
    config._attn_implementation = "eager"
    model = model_class(config).train()
    randomize(model, generator)
    batches = make_batches(config, generator)
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    (folder / "generation_config.json").unlink(missing_ok=True)

    out = call(model, {key: value[0] for key, value in batches.items()})
    out.loss.backward()
    with tempfile.TemporaryDirectory() as scratch:
        gradients = named_gradients(model, pathlib.Path(scratch))
    cases = {f"inputs.{key}": value.int() if value.dtype == torch.int64 else value
             for key, value in batches.items()}
    cases |= {f"gradients.{key}": value for key, value in gradients.items()}
    cases |= {"logits": out.logits.detach(), "loss": out.loss.detach()}
    cases["losses"] = train(model, call, batches)
    safetensors.torch.save_file({key: value.contiguous() for key, value in cases.items()},
                                folder / "cases.safetensors")
    facts = {"adamw": ADAMW, "steps": STEPS, "batches": BATCHES, "seed": seed,
             "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    (folder / "cases.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(name, float(cases["loss"]), float(cases["losses"][-1]),
          sum(f.stat().st_size for f in folder.iterdir()))


def main():
    torch.set_num_threads(1)
    for seed, name in enumerate(MODELS, 1):
        if name in sys.argv[1:] or len(sys.argv) == 1:
            make(name, seed)


if __name__ == "__main__":
    main()
