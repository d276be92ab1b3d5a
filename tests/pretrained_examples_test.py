"""examples/generate and examples/finetune with a small GPT-2 folder of Hugging Face."""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("HALIAX_BUILD", "build")
GENERATE, FINETUNE = BUILD / "examples/generate", BUILD / "examples/finetune"
VOCAB, EMBED, POSITIONS = 700, 16, 64
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB,
          "n_positions": POSITIONS, "n_embd": EMBED, "n_layer": 1, "n_head": 2}


def weights():
    """Returns the shapes of the tensors by name."""
    out = {"wte.weight": [VOCAB, EMBED], "wpe.weight": [POSITIONS, EMBED]}
    for name in "ln_f", "h.0.ln_1", "h.0.ln_2":
        out |= {f"{name}.weight": [EMBED], f"{name}.bias": [EMBED]}
    for name, inputs, outputs in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1),
                                  ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
        out |= {f"h.0.{name}.weight": [inputs * EMBED, outputs * EMBED],
                f"h.0.{name}.bias": [outputs * EMBED]}
    return {f"transformer.{name}": shape for name, shape in out.items()}


def random_values():
    """Returns a function from the name of a tensor and its size to its values."""
    numbers = random.Random(0)
    return lambda name, size: [float("ln_" in name and name.endswith("weight"))
                               + numbers.gauss(0, 0.1) for _ in range(size)]


def values_for(token):
    """Returns such a function for a model that always predicts the token."""
    def values(name, size):
        out = [0.0] * size
        if name == "transformer.wte.weight":
            out[token * EMBED] = 1.0
        if name == "transformer.ln_f.bias":
            out[0] = 1.0
        return out
    return values


def write_folder(folder, values_of):
    """Writes a model with values by name and size, and a tokenizer."""
    header, data = {}, b""
    for name, shape in weights().items():
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = values_of(name, size)
        part = struct.pack(f"<{size}f", *values)
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shutil.copy(ROOT / "tests/golden/tokenizer/gpt2.json", folder / "tokenizer.json")


@unittest.skipUnless(GENERATE.exists() and FINETUNE.exists(), "tools/build")
class PretrainedExamples(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name) / "model"
        self.folder.mkdir()
        write_folder(self.folder, random_values())

    def run_program(self, *command, status=0):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def generated(self, folder, *options):
        return self.run_program(GENERATE, folder, "--prompt", "Named tensors", "--tokens", 8,
                                *options).stdout

    def test_generate_repeats_a_text_with_a_seed(self):
        self.assertEqual(self.generated(self.folder), self.generated(self.folder))
        sampled = ["--temperature", 1, "--top-k", 50, "--top-p", 0.9]
        first = self.generated(self.folder, *sampled)
        self.assertEqual(first, self.generated(self.folder, *sampled))
        self.assertNotEqual(first, self.generated(self.folder, *sampled, "--seed", 1))

    def test_meshes_generate_the_text_of_one_device(self):
        for mesh in "model=2", "data=2,model=2", "data=3":
            self.assertEqual(self.generated(self.folder, "--mesh", mesh),
                             self.generated(self.folder))
        done = self.run_program(GENERATE, self.folder, "--prompt", "a", "--mesh", "pos=2", status=1)
        self.assertIn("data (weights), model (heads, and the MLP) and expert (experts)",
                      done.stderr)

    def losses(self, text, *options):
        log = self.folder.parent / "log.jsonl"
        self.run_program(FINETUNE, self.folder, text, "--steps", 3, "--length", 32, "--log", log,
                         *options)
        return [json.loads(line)["loss"] for line in log.read_text().splitlines()]

    def test_meshes_have_the_losses_of_one_device(self):
        text = self.folder.parent / "text.txt"
        text.write_text("Arrays have names.\nNames have sizes.\n\n" * 200)
        expected = self.losses(text)
        for mesh in "context=2", "data=2,context=2", "model=2,context=2", "expert=2":
            for a, b in zip(self.losses(text, "--mesh", mesh), expected, strict=True):
                self.assertAlmostEqual(a, b, places=4, msg=mesh)

    def test_lines_may_end_as_on_windows(self):
        text = self.folder.parent / "text.txt"
        lines = "Arrays have names.\nNames have sizes.\n\n" * 200
        text.write_bytes(lines.encode())
        expected = self.losses(text)
        text.write_bytes(lines.replace("\n", "\r\n").encode())
        self.assertEqual(self.losses(text), expected)

    def test_generate_prints_a_character_that_is_not_complete(self):
        vocabulary = json.loads((self.folder / "tokenizer.json").read_text())["model"]["vocab"]
        write_folder(self.folder, values_for(vocabulary["\u00e2"]))  # the byte E2, of three bytes
        self.assertEqual(self.generated(self.folder).strip("\n"), "\ufffd" * 8)

    def test_finetune_learns_and_writes_folders(self):
        text = self.folder.parent / "text.txt"
        text.write_text("Arrays have names.\nNames have sizes.\n\n" * 200)
        for options in ([], ["--lora", 2, "--modules", "h.*c_attn"],
                        ["--mesh", "data=2", "--accumulate", 2]):
            with self.subTest(options):
                out = self.folder.parent / f"out{len(options)}{options[:1]}"
                log = out.with_suffix(".jsonl")
                self.run_program(FINETUNE, self.folder, text, "--steps", 20, "--length", 32,
                                 "--warmup", 2, "--lr", 0.03, "--out", out, "--log", log, *options)
                lines = [json.loads(line) for line in log.read_text().splitlines()]
                self.assertEqual(len(lines), 20)
                self.assertLess(lines[-1]["loss"], lines[0]["loss"])
                self.assertIn("validation_loss", lines[-1])
                self.assertNotEqual(self.generated(out), self.generated(self.folder))
                self.assertEqual((out / "adapter/adapter_model.safetensors").exists(),
                                 "--lora" in options)
                if "--lora" in options:
                    config = json.loads((out / "adapter/adapter_config.json").read_text())
                    self.assertEqual(config["target_modules"], ["transformer.h.0.attn.c_attn"])

    def test_finetune_keeps_the_files_of_the_tokenizer_and_of_generation(self):
        text, out = self.folder.parent / "text.txt", self.folder.parent / "out"
        text.write_text("Arrays have names.\n" * 100)
        config = '{"eos_token_id": [1, 2]}'
        (self.folder / "generation_config.json").write_text(config)
        self.run_program(FINETUNE, self.folder, text, "--steps", 1, "--length", 32, "--out", out)
        self.assertEqual((out / "generation_config.json").read_text(), config)
        self.assertEqual((out / "tokenizer.json").read_text(),
                         (self.folder / "tokenizer.json").read_text())

    def test_finetune_raises_before_the_first_step(self):
        text = self.folder.parent / "text.txt"
        text.write_text("Arrays have names.\n" * 100)
        for options, part in ((["--length", POSITIONS + 1], f"the model has {POSITIONS} positions"),
                              (["--length", 32, "--lora", 2, "--modules", "c_attn,q_prj"],
                               "q_prj selects no"),
                              (["--length", 32, "--out", text / "out"], "cannot create")):
            with self.subTest(options):
                done = self.run_program(FINETUNE, self.folder, text, *options, status=1)
                self.assertIn(part, done.stderr)
                self.assertNotIn("step 1", done.stderr)

    def test_tokens_that_the_model_lacks_raise(self):
        path = self.folder / "tokenizer.json"
        spec = json.loads(path.read_text())
        spec["added_tokens"].append({"id": VOCAB, "content": "<new>", "special": True,
                                     "single_word": False, "lstrip": False, "rstrip": False,
                                     "normalized": False})
        path.write_text(json.dumps(spec))
        text = self.folder.parent / "text.txt"
        text.write_text("Arrays have names.<new>\n" * 100)
        for command in ([GENERATE, self.folder, "--prompt", "a<new>"],
                        [FINETUNE, self.folder, text, "--length", 32]):
            done = self.run_program(*command, status=1)
            self.assertIn(f"token {VOCAB} is not among the {VOCAB} tokens", done.stderr)

    def refused(self, *parts):
        """Checks that both programs print one sentence with all parts, and write nothing."""
        text, out = self.folder.parent / "text.txt", self.folder.parent / "out"
        text.write_text("Arrays have names.\n" * 100)
        log = out.with_suffix(".jsonl")
        for command in ([GENERATE, self.folder, "--prompt", "a"],
                        [FINETUNE, self.folder, text, "--length", 32, "--out", out, "--log", log]):
            done = self.run_program(*command, status=1)
            self.assertEqual(done.stdout, "")
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            for part in parts:
                self.assertIn(part, done.stderr)
            self.assertFalse(out.exists() or log.exists())

    def test_folders_that_lack_a_part_raise(self):
        self.run_program(FINETUNE, self.folder, "/nothing", status=1)
        config = self.folder / "config.json"
        known = ["GPT2LMHeadModel", "LlamaForCausalLM", "MixtralForCausalLM",
                 "Qwen3MoeForCausalLM"]
        for change in {"architectures": ["T5"]}, {"architectures": [], "model_type": "T5"}:
            config.write_text(json.dumps(CONFIG | change))
            self.refused("architecture T5 is not supported", *known)
        for change, part in (({"n_head": 3}, "3 attention heads"),
                             ({"n_layer": -1}, "n_layer -1; it must be at least 1"),
                             ({"n_layer": 2 ** 40}, "but the file has 16 in total")):
            config.write_text(json.dumps(CONFIG | change))
            self.refused(part)
        config.unlink()
        self.refused("has no config.json")
        config.write_text(json.dumps(CONFIG))
        weights = self.folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        self.refused("the file is truncated")
        tokenizer = self.folder / "tokenizer.json"
        tokenizer.write_text(json.dumps({"model": {"type": "Unigram", "vocab": []}}))
        self.refused("the model Unigram is not supported")   # before weights are read
        tokenizer.unlink()
        self.refused("tokenizer.json does not exist")

    def test_generate_stops_at_the_tokens_of_generation_config(self):
        vocabulary = json.loads((self.folder / "tokenizer.json").read_text())["model"]["vocab"]
        write_folder(self.folder, values_for(vocabulary["a"]))
        self.assertEqual(self.generated(self.folder), "a" * 8 + "\n")
        config = self.folder / "generation_config.json"
        config.write_text(json.dumps({"eos_token_id": [vocabulary["b"], vocabulary["a"]]}))
        self.assertEqual(self.generated(self.folder), "\n")
        config.write_text(json.dumps({"eos_token_id": "a"}))
        self.run_program(GENERATE, self.folder, "--prompt", "a", status=1)


if __name__ == "__main__":
    unittest.main()
