"""tinker-cookbook against a server: its capture proxy, which agents talk to, and its evaluators.

It speaks the API of Tinker to the server, and serves those of OpenAI and Anthropic itself. Expects a directory ``tiny``
with the tokenizer of the base model ``tiny`` in the working directory.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import anthropic
import openai
import tinker
from aiohttp import web
from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate
from tinker_cookbook.capture import CaptureExporter, JsonlFileSink, instrument_tinker, uninstrument_tinker
from tinker_cookbook.capture.proxy.app import ProxyDeps, make_app
from tinker_cookbook.eval.inspect_evaluators import InspectEvaluatorBuilder
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.stores.storage import LocalStorage
from tinker_cookbook.supervised.nll_evaluator import NLLEvaluator, SamplerNLLEvaluator
from tinker_cookbook.tokenizer_utils import get_tokenizer

MODEL = "tiny"
HI: Any = [{"role": "user", "content": "What holds a fall?"}]
TOOL: Any = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


async def talk(proxy: str) -> dict[str, Any]:
    base = f"{proxy}/r/run/x/traj/0"
    long: Any = [{"role": "user", "content": "a b " * 20_000}]
    async with (
        openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as of_openai,
        anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0) as of_anthropic,
    ):
        chat = of_openai.chat.completions
        whole = await chat.create(model="m", messages=HI, max_tokens=12, seed=3)
        stream = await chat.create(model="m", messages=HI, max_tokens=12, seed=3, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        message = await of_anthropic.messages.create(model="m", messages=HI, max_tokens=12, tools=[TOOL])
        try:
            await chat.create(model="m", messages=long, max_tokens=12)
        except openai.BadRequestError as error:
            too_long = str(error)
    return {
        "stream": text == whole.choices[0].message.content,
        "message": message.usage.output_tokens,
        "too_long": too_long,
    }


async def capture(sampler: tinker.SamplingClient) -> dict[str, Any]:
    exporter = CaptureExporter(JsonlFileSink(LocalStorage(Path("captured"))))
    instrument_tinker(exporter)
    renderer = get_renderer("qwen3", get_tokenizer(MODEL), model_name=MODEL)
    runner = web.AppRunner(make_app(ProxyDeps(renderer=renderer, sampling_client=sampler, model_label=MODEL)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        told = await talk(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
        uninstrument_tinker()
        exporter.wait_pending(timeout=10)
        exporter.force_flush(timeout=10)
        exporter.shutdown()
    lines = [json.loads(line) for file in Path("captured").rglob("*.jsonl") for line in file.read_text().splitlines()]
    captured = [each for each in lines if each.get("status") == "ok"]
    return {**told, "captured": len(captured), "logprobs": all(each["samples"][0]["logprobs"] for each in captured)}


def main() -> None:
    service = tinker.ServiceClient(base_url=os.environ["SERVER"], api_key=os.environ["KEY"])
    run = service.create_lora_training_client(base_model=MODEL, rank=4)
    sampler = run.save_weights_and_get_sampling_client()
    tokens = list(range(10, 40))
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * 29},
    )
    task = Task(
        dataset=MemoryDataset([Sample(input="Say hi.", target="a")], name="qa"), solver=generate(), scorer=includes()
    )
    build = InspectEvaluatorBuilder(
        tasks=[task], renderer_name="qwen3", model_name=MODEL, max_tokens=16, log_dir="logs", seed=1
    )
    told = {
        "sampled_nll": asyncio.run(SamplerNLLEvaluator([datum])(sampler))["test/nll"],
        "trained_nll": asyncio.run(NLLEvaluator([datum])(run))["test/nll"],
        "inspect": asyncio.run(build()(sampler)),
        "proxy": asyncio.run(capture(sampler)),
    }
    service.close("success").result()
    print(json.dumps(told))


main()
