"""An inference server with a tiny model, as a process: ``python tests/engine_server.py FOLDER [--sglang] [--raw] …``.

It answers as vLLM 0.32 documents it: chat completions with token ids and log-probabilities, LoRA weights that are
loaded from a folder, whole weights with their version and caches, ``/v1/models``, sleep and wake. With ``--sglang`` the
forms are SGLang 0.5.23's. Parameters that a request leaves out come from defaults that would change the distribution,
as servers take them from ``generation_config.json``.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from digirl_dist.child_process import environment

BASE = "tiny"
START_ANEW = "/start_anew"
"""What no real server has: it forgets its adapters and has these options, without the seconds of another process."""
_MODEL_DEFAULTS = {"top_k": 2, "top_p": 0.5, "repetition_penalty": 1.5, "temperature": 0.3}


class Model:
    """The model with its adapters. A version that is not loaded cannot answer."""

    def __init__(self, folder: str, raw: bool, scale: float) -> None:
        import torch
        from peft import PeftModel
        from transformers import AutoModelForImageTextToText, AutoProcessor

        torch.set_num_threads(1)
        self.processor = AutoProcessor.from_pretrained(folder)
        self.base = AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.peft: PeftModel | None = None
        self.raw, self.scale = raw, scale
        self.adapters: dict[str, str] = {}
        self.version = "default"
        self.stale: set[str] = set()
        """Caches that still have what weights before these made: answers are by those."""

    def replace(self, path: str, stale: set[str]) -> None:
        from transformers import AutoModelForImageTextToText

        self.stale, self.before = stale, self.base
        self.base = AutoModelForImageTextToText.from_pretrained(path).eval()

    def load(self, name: str, path: str) -> None:
        from peft import PeftModel
        from peft.tuners.lora import LoraLayer

        if self.peft is None:
            self.peft = PeftModel.from_pretrained(self.base, path, adapter_name=name).eval()
        else:
            self.peft.load_adapter(path, name)
        self.adapters[name] = path
        for part in self.peft.modules():
            if isinstance(part, LoraLayer):
                part.scaling[name] *= self.scale

    def unload(self, name: str) -> None:
        del self.adapters[name]
        if self.adapters:
            self.peft.set_adapter(next(iter(self.adapters)))
            self.peft.delete_adapter(name)

    def answer(self, adapter: str, body: dict[str, Any]) -> tuple[list[int], list[int], list[float], str]:
        """Prompt, tokens, their log-probabilities and why it ended."""
        import torch

        asked = {**_MODEL_DEFAULTS, **body}
        assert asked["top_p"] == 1.0 and asked["top_k"] in (0, -1) and asked["repetition_penalty"] == 1.0, "truncated"
        model = self.before if self.stale else self.base
        if adapter != BASE:
            model = self.peft
            model.set_adapter(adapter)
        given = self.processor.apply_chat_template(
            [_with_images(body["messages"])], add_generation_prompt=True, tokenize=True, return_dict=True,
            return_tensors="pt",
        )  # fmt: skip
        prompt, randomness = given["input_ids"][0].tolist(), torch.Generator().manual_seed(body["seed"])
        tokens: list[int] = []
        chances: list[float] = []
        while len(tokens) < body["max_tokens"] and not (tokens and tokens[-1] in body["stop_token_ids"]):
            ids = torch.tensor([prompt + tokens])
            with torch.no_grad():
                logits = model(
                    input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=given["pixel_values"]
                ).logits[0, -1]
            raw = logits.log_softmax(0)
            for token, bias in body.get("logit_bias", {}).items():
                logits[int(token)] += bias
            drawn_from = (logits / asked["temperature"]).log_softmax(0)
            token = int(torch.multinomial(drawn_from.exp(), 1, generator=randomness))
            tokens.append(token)
            chances.append(float((raw if self.raw else drawn_from)[token]))
        return prompt, tokens, chances, "stop" if tokens[-1] in body["stop_token_ids"] else "length"


def _with_images(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from PIL import Image

    def part(each: dict[str, Any]) -> dict[str, Any]:
        if each["type"] != "image_url":
            return each
        content = base64.b64decode(each["image_url"]["url"].split(",", 1)[1])
        return {"type": "image", "image": Image.open(io.BytesIO(content)).convert("RGB")}

    return [{**message, "content": [part(each) for each in message["content"]]} for message in messages]


class Handler(BaseHTTPRequestHandler):
    model: Model
    options: argparse.Namespace
    lock = threading.Lock()
    asked = 0
    sleeps = False

    def do_GET(self) -> None:
        if self.path in ("/weight_info", "/model_info"):
            told = self.options.sglang or self.options.dev_mode
            self._send(200 if told else 404, {"weight_version": self.model.version})
            return
        cards = [{"id": BASE, "parent": None}, *({"id": name, "parent": BASE} for name in self.model.adapters)]
        owner = "sglang" if self.options.sglang else "vllm"
        self._send(200, {"object": "list", "data": [{**card, "object": "model", "owned_by": owner} for card in cards]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = os.environ.get("ENGINE_KEY")
        root = "" if self.options.sglang else "/v1"
        with self.lock:
            sys.stdout.write(json.dumps([self.path, body.get("lora_name") or body.get("model")]) + "\n")
            sys.stdout.flush()
            if self.path == START_ANEW:
                start(body["words"])
                self._send(200, "Success")
            elif wanted and self.headers["Authorization"] != f"Bearer {wanted}":
                self._send(401, {"error": {"message": "Unauthorized"}})
            elif self.path == f"{root}/load_lora_adapter":
                self._load(body["lora_name"], body["lora_path"])
            elif self.path == f"{root}/unload_lora_adapter":
                self._unload(body["lora_name"])
            elif self.path in self._naps():
                self._nap(self._naps().index(self.path) == 0)
            elif Handler.sleeps:
                self._send(500, {"error": {"message": "it sleeps"}})
            elif self.path == "/update_weights_from_disk" and self.options.sglang:
                self.model.replace(body["model_path"], set())
                self.model.version = body["weight_version"]
                self._send(200, {"success": True})
            elif self.path == "/collective_rpc" and self.options.dev_mode:
                assert body["method"] == "reload_weights"
                self.model.replace(body["kwargs"]["weights_path"], {"prefix", "mm", "encoder"})
                self._send(200, {"results": [None]})
            elif self.path == "/update_weight_version" and self.options.dev_mode:
                self.model.version = body["new_version"]
                self._send(200, {"success": True})
            elif self.path.startswith("/reset_") and self.options.dev_mode:
                self.model.stale.remove(self.path.split("_")[1])
                self._send(200, {"success": True})
            elif self.path == "/v1/chat/completions":
                self._complete(body)
            else:
                self._send(404, {"detail": "Not Found"})

    def _naps(self) -> list[str]:
        """The routes by which it falls asleep and wakes up."""
        of_sglang = ["/release_memory_occupation", "/resume_memory_occupation"]
        return of_sglang if self.options.sglang else ["/sleep?level=1", "/wake_up"]

    def _nap(self, begins: bool) -> None:
        """Without its option, vLLM has no such route, and SGLang no such memory."""
        if self.options.can_sleep:
            Handler.sleeps = begins
            self._send(200, "")
        else:
            self._fail(404, "Not Found")

    def _load(self, name: str, path: str) -> None:
        if name in self.model.adapters:
            self._fail(400, f"The lora adapter '{name}' has already been loaded.")
        elif not (Path(path) / "adapter_config.json").is_file():
            self._fail(404, f"No adapter found for {path}")
        else:
            self.model.load(name, path)
            self._send(200, "Success")

    def _unload(self, name: str) -> None:
        if name not in self.model.adapters:
            self._fail(404, f"The lora adapter '{name}' cannot be found.")
        else:
            self.model.unload(name)
            self._send(200, "Success")

    def _complete(self, body: dict[str, Any]) -> None:
        Handler.asked += 1
        if Handler.asked > self.options.dies_after:
            os._exit(9)
        name = body["model"].removeprefix(f"{BASE}:") if self.options.sglang else body["model"]
        if name not in (BASE, *self.model.adapters):
            self._fail(404, f"The model `{name}` does not exist.")
            return
        prompt, tokens, chances, reason = self.model.answer(name, body)
        content = [{"token": "?", "logprob": each, "bytes": None, "top_logprobs": []} for each in chances]
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "?"}, "finish_reason": reason,
                                  "logprobs": {"content": content}}  # fmt: skip
        told = {"response_token_ids": tokens, "prompt_token_ids": prompt}
        choice |= told if self.options.sglang else {"token_ids": tokens}
        whole: dict[str, Any] = {"id": "1", "object": "chat.completion", "model": body["model"], "choices": [choice]}
        self._send(200, whole if self.options.sglang else {**whole, "prompt_token_ids": prompt})

    def _fail(self, status: int, message: str) -> None:
        if self.options.sglang:
            self._send(400, {"success": False, "error_message": message})
        else:
            self._send(status, {"error": {"message": message, "type": "BadRequestError", "code": status}})

    def _send(self, status: int, body: Any) -> None:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing to the terminal."""


@dataclass
class Engine:
    """A running server; ``log`` has each POST's path and the adapter that it names."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    words: list[str]
    """Of its command line, but for options."""

    def posts(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("[")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_anew(self, *options: str) -> None:
        """Does as if it were another server, with these options."""
        body = json.dumps({"words": [*self.words, *options]}).encode()
        urlopen(Request(self.url.removesuffix("/v1") + START_ANEW, body), timeout=120).close()


@contextmanager
def engine(folder: Path, log: Path, *options: str, port: int = 0, key: str = "") -> Iterator[Engine]:
    """Starts the server on loopback and waits until it listens."""
    ours, theirs = os.pipe()
    words = [str(folder), "--port", str(port), "--ready", str(theirs)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, __file__, *words, *options],
            pass_fds=[theirs],
            stdout=file,
            stderr=file,
            env={**environment(), "ENGINE_KEY": key},
        )
    os.close(theirs)
    try:
        told = os.read(ours, 100) if select.select([ours], [], [], 300)[0] else b""
        assert told, f"the engine did not start: {log.read_text()[-3000:]}"
        yield Engine(f"http://127.0.0.1:{int(told)}/v1", process, log, words)
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def start(words: Sequence[str]) -> None:
    """Makes the model, without adapters; ``words`` are those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--sglang", action="store_true")
    parser.add_argument("--raw", action="store_true", help="log-probabilities before the temperature, vLLM's default")
    parser.add_argument("--lora-scale", type=float, default=1.0, help="0 ignores the adapters")
    parser.add_argument("--can-sleep", action="store_true", help="--enable-sleep-mode, or --enable-memory-saver")
    parser.add_argument("--dev-mode", action="store_true", help="VLLM_SERVER_DEV_MODE")
    parser.add_argument("--dies-after", type=float, default=math.inf, help="answers")
    Handler.options = parser.parse_args(words)
    Handler.model = Model(Handler.options.folder, Handler.options.raw, Handler.options.lora_scale)


def main() -> None:
    start(sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", Handler.options.port), Handler)
    os.write(Handler.options.ready, str(server.server_port).encode())
    server.serve_forever()


if __name__ == "__main__":
    main()
